"""A stateful test that plays workers, crashes, clocks and users against one ledger.

Subclass `LedgerMachine`, give it `open_ledger`, and run it with hypothesis. After every step
the oracle holds the ledger against what must be true; at the end of a run all workers behave,
and every job must come to its end.
"""

from __future__ import annotations

from intermission.testing.machine.users import Users
from intermission.testing.machine.workers import Workers

__all__ = ["LedgerMachine"]


class LedgerMachine(Workers, Users):
    """One ledger, three workers, and everything that can go wrong between them."""
