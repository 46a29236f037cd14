"""Interruption notices: what is asked, what counts as one, and what nobody may be harmed by."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from intermission.backends.interruption import imds
from intermission.backends.interruption.imds import NoticeWatch, is_wanted, watching
from intermission.engine.drain import Drain
from intermission.errors import UsageError
from intermission.settings import Settings, load_settings
from intermission.testing.clock import FakeClock
from servers.imds import ACTION, REBALANCE, TOKEN, MetadataService, serving

PATIENCE_S = 20.0
FRESH_S = 120.0


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with serving() as service:
        yield service


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class Bench:
    """A watch whose rounds the test makes, and what it asked for."""

    def __init__(self, url: str, clock: FakeClock, **settings: object) -> None:
        given = {"imds_url": url, "drain_s": 7.0, **settings}
        self.asked: list[tuple[str, float]] = []
        self.watch = NoticeWatch(
            Settings.model_validate(given), clock, lambda *ask: self.asked.append(ask)
        )

    def tick(self) -> list[tuple[str, float]]:
        self.goes_on = self.watch.tick()
        return self.asked


@pytest.fixture
def bench(service: MetadataService, clock: FakeClock) -> Bench:
    return Bench(service.url, clock)


def at(clock: FakeClock, left_s: float) -> str:
    when = datetime.fromtimestamp(clock.now_ms() / 1000, UTC) + timedelta(seconds=left_s)
    return f"{when:%Y-%m-%dT%H:%M:%SZ}"


def notice(clock: FakeClock, left_s: float = FRESH_S, action: str = "terminate") -> bytes:
    return json.dumps({"action": action, "time": at(clock, left_s)}).encode()


def test_nothing_to_tell(service: MetadataService, bench: Bench) -> None:
    assert bench.tick() == []
    assert bench.goes_on
    assert service.answers == [(TOKEN, 200), (ACTION, 404), (REBALANCE, 404)]


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_a_notice_drains(
    action: str, service: MetadataService, bench: Bench, clock: FakeClock
) -> None:
    bench.tick()
    service.says[ACTION] = notice(clock, action=action)
    assert bench.tick() == [(f"spot interruption: {action} at {at(clock, FRESH_S)}", 80.0)]
    assert not bench.goes_on, "there is no more to ask"


@pytest.mark.parametrize(
    ("left_s", "budget_s"),
    [(120, 80), (115, 75), (100, 60), (41, 1), (40, 0), (5, 0), (0, 0), (-60, 0), (7200, 80)],
)
def test_the_budget_leaves_time_to_sync(
    left_s: float, budget_s: float, service: MetadataService, bench: Bench, clock: FakeClock
) -> None:
    service.says[ACTION] = notice(clock, left_s)
    ((_, found_s),) = bench.tick()
    assert found_s == budget_s


def test_a_token_is_asked_for_once_and_before_it_ends(
    service: MetadataService, bench: Bench, clock: FakeClock
) -> None:
    for _ in range(3):
        bench.tick()
    assert service.answers.count((TOKEN, 200)) == 1
    clock.advance(0.95 * imds.TOKEN_TTL_S)
    bench.tick()
    assert service.answers.count((TOKEN, 200)) == 2
    assert not [answer for answer in service.answers if answer[1] == 401]


def test_an_expired_token_costs_no_round(
    service: MetadataService, bench: Bench, clock: FakeClock
) -> None:
    bench.tick()
    service.tokens.clear()
    service.says[ACTION] = notice(clock)
    assert len(bench.tick()) == 1
    assert service.answers[-3:] == [(ACTION, 401), (TOKEN, 200), (ACTION, 200)]


def no_notices() -> list[bytes]:
    good = {"action": "terminate", "time": "2026-01-31T12:00:00Z"}
    told = [
        {**good, "action": "dance"},
        {**good, "action": ["terminate"]},
        {**good, "time": "soon"},
        {**good, "time": "2026-01-31T12:00:00"},
        {**good, "time": "0001-01-01T00:00:00+14:00"},
        {**good, "time": 1_769_860_800},
        {"action": "terminate"},
        [good],
        None,
    ]
    other = [b"", b"{", b"<html>", b"\xff\xfe", b"[" * 4096, json.dumps(good).encode() * 200]
    return [*(json.dumps(document).encode() for document in told), *other]


@pytest.mark.parametrize("body", no_notices())
def test_what_is_no_notice_is_passed_over(
    body: bytes, service: MetadataService, clock: FakeClock
) -> None:
    bench = Bench(service.url, clock, on_rebalance="drain")
    service.says = {ACTION: body, REBALANCE: body}
    assert bench.tick() == []
    assert bench.goes_on
    service.says[ACTION] = notice(clock)
    assert len(bench.tick()) == 1


@pytest.mark.parametrize("trouble", ["refused", "broken token", "no HTTP", "empty", "hangs"])
def test_a_service_in_trouble_is_asked_again(
    trouble: str,
    service: MetadataService,
    bench: Bench,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()
    service.says[ACTION] = notice(clock)
    match trouble:
        case "refused":
            service.token_status = 403
        case "broken token":
            service.token_suffix = "\r\nX-Evil: 1"
        case "no HTTP":
            service.raw = b"SSH-2.0-OpenSSH_9.2\r\n\r\n"
        case "empty":
            service.raw = b""
        case _:
            monkeypatch.setattr(imds, "TIMEOUT_S", 0.05)
            service.before = lambda _: released.wait(PATIENCE_S)
    assert bench.tick() == []
    assert bench.goes_on
    monkeypatch.setattr(imds, "TIMEOUT_S", PATIENCE_S)
    released.set()
    service.token_status, service.token_suffix, service.raw = 200, "", None
    assert len(bench.tick()) == 1


def test_nobody_there(clock: FakeClock) -> None:
    with serving() as gone:
        pass
    bench = Bench(gone.url, clock)
    assert bench.tick() == []
    assert bench.goes_on
    assert Bench("http://127.0.0.1:99999", clock).tick() == []


def test_no_proxy_is_asked(
    service: MetadataService, bench: Bench, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    service.says[ACTION] = notice(clock)
    assert len(bench.tick()) == 1


def test_a_recommendation_is_told_once(
    service: MetadataService, bench: Bench, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    service.says[REBALANCE] = json.dumps({"noticeTime": at(clock, 0)}).encode()
    with caplog.at_level(logging.WARNING, "intermission"):
        bench.tick()
        assert bench.tick() == []
    (record,) = caplog.records
    assert "likely to be interrupted" in record.getMessage()
    service.says[ACTION] = notice(clock)
    assert len(bench.tick()) == 1


def test_a_recommendation_drains_where_it_is_told_to(
    service: MetadataService, clock: FakeClock
) -> None:
    bench = Bench(service.url, clock, on_rebalance="drain")
    service.says[REBALANCE] = json.dumps({"noticeTime": at(clock, 0)}).encode()
    bench.tick()
    assert bench.tick() == [("spot rebalance recommendation", 7.0)]
    assert bench.goes_on, "the notice itself may follow, with less time"


def test_a_thread_asks_again_and_again(
    service: MetadataService, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imds, "EVERY_S", 0.01)
    told = threading.Event()
    polled = threading.Event()
    service.before = lambda path: polled.set() if service.answers.count((path, 404)) else None
    settings = Settings(imds_url=service.url)
    with watching(settings, clock, lambda *_: told.set()):
        assert polled.wait(PATIENCE_S)
        assert not told.is_set()
        service.says[ACTION] = notice(clock)
        assert told.wait(PATIENCE_S)
    assert "notice-watch" not in {thread.name for thread in threading.enumerate()}


def test_stopping_does_not_wait_for_the_next_round(
    service: MetadataService, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imds, "EVERY_S", 10 * PATIENCE_S)
    watch = NoticeWatch(Settings(imds_url=service.url), clock, lambda *_: None)
    watch.start()
    watch.stop()


def machine(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return folder


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, False),
        ({"class__dmi__id__sys_vendor": "Amazon EC2"}, True),
        ({"class__dmi__id__sys_vendor": "Dell Inc.", "hypervisor__uuid": "123-ec2"}, False),
        ({"class__dmi__id__board_asset_tag": "i-0123456789abcdef0"}, True),
        ({"class__dmi__id__sys_vendor": "Xen", "hypervisor__uuid": "EC2E1916-9099"}, True),
    ],
)
def test_who_is_watched(files: dict[str, str], wanted: bool, tmp_path: Path) -> None:
    here = machine(tmp_path, **files)
    assert is_wanted(Settings(), {}, here) is wanted
    assert not is_wanted(Settings(), {"AWS_EC2_METADATA_DISABLED": "True"}, here)
    assert not is_wanted(Settings(interruption_notices="off", imds_url="http://here"), {}, here)
    assert is_wanted(Settings(interruption_notices="imds"), {}, here)
    assert is_wanted(Settings(imds_url="http://here"), {}, here)


@pytest.mark.parametrize("url", ["https://h", "169.254.169.254", "http://h/path", "http://h:x"])
def test_a_wrong_endpoint_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="imds_url"):
        load_settings({"imds_url": url}, environ={}, cwd=tmp_path)


@pytest.mark.parametrize("url", ["http://[fd00:ec2::254]", "http://127.0.0.1:8080/"])
def test_a_right_endpoint_is_taken(url: str, tmp_path: Path) -> None:
    assert load_settings({"imds_url": url}, environ={}, cwd=tmp_path).settings.imds_url == url


def test_help_does_not_pay_for_it() -> None:
    code = (
        "import sys\nfrom intermission.cli import main\nsys.argv[1:] = ['run', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert not {'http.client', 'ssl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, capture_output=True)


def test_a_drain_is_never_lengthened(clock: FakeClock) -> None:
    drain = Drain(clock, 20.0)
    start_s = clock.monotonic_s()
    drain.ask("notice", 80.0)
    assert (drain.reason, drain.deadline_s) == ("notice", start_s + 80)
    drain.ask("rebalance", 90.0)
    assert drain.deadline_s == start_s + 80
    drain.ask("notice again", 30.0)
    assert (drain.reason, drain.deadline_s) == ("notice", start_s + 30)
    clock.advance(5)
    drain.ask("SIGTERM")
    assert (drain.reason, drain.deadline_s) == ("notice", start_s + 5)


def test_the_usual_time_at_first_and_none_when_asked_twice(clock: FakeClock) -> None:
    drain = Drain(clock, 20.0)
    drain.ask("SIGTERM")
    assert drain.deadline_s == clock.monotonic_s() + 20
    drain.ask("SIGTERM")
    assert drain.deadline_s == clock.monotonic_s()


def test_another_thread_wakes_the_worker(clock: FakeClock) -> None:
    drain = Drain(clock, 20.0)
    drain.ask("too early to wake anybody", 100.0)
    with drain.listening() as wake:
        assert select.select([wake], [], [], 0)[0] == []
        asking = threading.Thread(target=drain.ask, args=("notice", 80.0))
        asking.start()
        assert select.select([wake], [], [], PATIENCE_S)[0] == [wake]
        asking.join()
        for _ in range(100_000):  # more than a pipe holds: nobody may be kept waiting
            drain.ask("again", 50.0)
    others = os.pipe()
    drain.ask("too late", 1.0)
    assert select.select([others[0]], [], [], 0)[0] == [], "its descriptor is somebody else's now"
    for fd in others:
        os.close(fd)
