"""The ledger contract, through a real server and back."""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from intermission.backends.http.ledger import HttpLedger
from intermission.engine.lease_renewer import MARGIN
from intermission.errors import LedgerError
from intermission.model import Heartbeat
from intermission.testing.clock import FakeClock
from intermission.testing.ledger import LedgerContract
from servers.worker_api import ADMIN, Bench, served_in


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Bench]]:
    with served_in(tmp_path_factory.mktemp("served")) as served:
        yield served.url, served.bench


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestHttpLedger(LedgerContract):
    @pytest.fixture
    def open_ledger(
        self, served: tuple[str, Bench], tmp_path: Path, clock: FakeClock
    ) -> Callable[[], HttpLedger]:
        url, bench = served
        bench.use(tmp_path, clock)
        return lambda: HttpLedger(url, ADMIN)


def test_a_ledger_can_be_sent_to_another_process(served: tuple[str, Bench], tmp_path: Path) -> None:
    url, bench = served
    bench.use(tmp_path, FakeClock())
    sent = pickle.loads(pickle.dumps(HttpLedger(url, ADMIN)))
    assert sent.jobs() == []
    assert ADMIN not in repr(sent)


def test_a_renewal_that_a_server_leaves_unanswered_fails_long_before_its_lease_ends() -> None:
    """So a keeper can still end the work in time."""
    lease_ttl_s = 9.0
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it is connected to, and says nothing
        ledger = HttpLedger(f"http://127.0.0.1:{silent.getsockname()[1]}", ADMIN)
        began_s = time.monotonic()
        with pytest.raises(LedgerError, match="no usable answer"):
            ledger.renew("w1", [Heartbeat(1, 1)], lease_ttl_s=lease_ttl_s)
        assert time.monotonic() - began_s < lease_ttl_s * MARGIN
