"""Every ledger against the one contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from intermission.backends.ledger.memory import MemoryLedger
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.testing.clock import FakeClock
from intermission.testing.ledger import LedgerContract


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestMemoryLedger(LedgerContract):
    @pytest.fixture
    def open_ledger(self, clock: FakeClock) -> Callable[[], MemoryLedger]:
        ledger = MemoryLedger(clock=clock)
        return lambda: ledger


class TestSqliteLedger(LedgerContract):
    @pytest.fixture
    def open_ledger(self, tmp_path: Path, clock: FakeClock) -> Callable[[], SqliteLedger]:
        return lambda: SqliteLedger(tmp_path / "ledger.sqlite", clock=clock)
