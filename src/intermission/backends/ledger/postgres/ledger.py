"""The ledger in a PostgreSQL database."""

from __future__ import annotations

from intermission.backends.ledger.postgres.database import PostgresDatabase
from intermission.backends.ledger.postgres.transactions import PATIENCE_S
from intermission.backends.ledger.sql import SqlLedger
from intermission.model import LOST_MAX
from intermission.ports.clock import Clock


class PostgresLedger(SqlLedger):
    """A ledger in a database. One instance per thread; open a new one after a fork."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        patience_s: float = PATIENCE_S,
        lost_max: int = LOST_MAX,
    ) -> None:
        super().__init__(PostgresDatabase(url, clock, patience_s=patience_s), lost_max=lost_max)
