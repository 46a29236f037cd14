"""Every ledger against the one contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.register_assert_rewrite("intermission.testing.ledger")

from intermission.backends.ledger.memory import MemoryLedger  # noqa: E402
from intermission.backends.ledger.sqlite import SqliteLedger  # noqa: E402
from intermission.testing.clock import FakeClock  # noqa: E402
from intermission.testing.ledger import LedgerContract  # noqa: E402


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
