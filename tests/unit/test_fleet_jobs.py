"""A fleet's jobs, opened by its workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from intermission.composition.fleet import Fleet
from intermission.errors import LedgerError
from intermission.settings import Settings


def test_a_job_that_is_gone_from_the_ledger_is_the_ledgers_fault(tmp_path: Path) -> None:
    """A ledger was restored after the claim: the worker waits and asks again."""
    fleet = Fleet(Settings(ledger=str(tmp_path / "ledger.sqlite")))
    with pytest.raises(LedgerError, match="gone from the ledger"):
        fleet.open_job(fleet.ledger, "0123456789abcdef", "worker")
