"""Services that fail are started again, and it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from intermission.errors import LedgerError
from intermission.services import supervisor
from intermission.services.supervisor import Service, Supervision, Supervisor

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PAUSE_S", 0.001)


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.001)


class Fragile:
    """Work that goes wrong as often as it is told to."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.works = threading.Event()
        self.starts = 0

    def __call__(self, service: Supervision) -> None:
        self.starts += 1
        if self.errors:
            raise self.errors.pop(0)
        service.succeeded()
        self.works.set()
        service.wait()


def test_a_service_that_fails_is_started_again_and_its_error_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = Fragile(ValueError("odd"), LedgerError("the ledger is away."))
    service = Service("watches", work)
    with Supervisor([service]).running():
        assert work.works.wait(DEADLINE_S)
    assert (work.starts, service.restarts, service.error) == (3, 2, None)
    assert "watches failed and is tried again: odd" in caplog.text
    assert "Traceback" in caplog.text, "nobody expected a ValueError"
    assert "watches works again" in caplog.text


def test_an_essential_service_is_told_while_it_fails() -> None:
    failed = threading.Event()

    def broken(service: Supervision) -> None:
        if not failed.is_set():
            raise ValueError("odd")
        service.wait()

    spare = Service("spare", broken, is_essential=False)
    watches = Service("watches", broken)
    supervisor = Supervisor([Service("others", Fragile()), spare, watches])
    with supervisor.running():
        until(lambda: spare.restarts and watches.restarts)
        failing = supervisor.failing()
        assert failing is not None
        assert (failing.name, str(failing.error)) == ("watches", "odd")
        failed.set()


def test_one_that_has_nothing_left_to_do_is_left_alone() -> None:
    ended = threading.Event()
    service = Service("alerts", lambda _: ended.set())
    supervisor = Supervisor([service])
    with supervisor.running():
        assert ended.wait(DEADLINE_S)
        service.join(DEADLINE_S)
        assert (service.restarts, service.error, supervisor.failing()) == (0, None, None)


def test_a_repeated_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    work = Fragile(*(LedgerError("the ledger is away.") for _ in range(5)))
    with Supervisor([Service("watches", work)]).running():
        assert work.works.wait(DEADLINE_S)
    assert caplog.text.count("failed and is tried again") == 1


def test_pauses_grow_up_to_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PAUSE_S", 1.0)
    monkeypatch.setattr(supervisor, "uniform", lambda low, high: high)
    service = Service("watches", lambda _: None, pause_max_s=5.0)
    pauses = []
    for _ in range(5):
        service._failed(ValueError())
        pauses.append(service._pause_s())
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0]
