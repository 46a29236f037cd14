"""Every ledger against the one contract."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.testing.clock import FakeClock
from intermission.testing.ledger import LedgerContract


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestSqliteLedger(LedgerContract):
    fan_ins = int(os.environ.get("INTERMISSION_TEST_FAN_INS", "200"))

    @pytest.fixture
    def open_ledger(self, tmp_path: Path, clock: FakeClock) -> Callable[[], SqliteLedger]:
        return lambda: SqliteLedger(tmp_path / "ledger.sqlite", clock=clock)
