"""The ledger in one SQLite file."""

from __future__ import annotations

from pathlib import Path

from intermission.backends.ledger.sql import SqlLedger
from intermission.backends.ledger.sqlite.database import SqliteDatabase
from intermission.model import LOST_MAX
from intermission.ports.clock import Clock


class SqliteLedger(SqlLedger):
    """A ledger in one file, for many processes of one machine."""

    def __init__(self, path: Path, *, clock: Clock | None = None, lost_max: int = LOST_MAX) -> None:
        self.path = path
        self.database = SqliteDatabase(path, clock)
        super().__init__(self.database, lost_max=lost_max)
