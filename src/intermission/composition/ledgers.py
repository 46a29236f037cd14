"""A shared ledger: one for the jobs of all sources, in place of one in each workspace.

Receipts and artifacts stay where they are, in the workspace of their source; so what a fleet has
finished, a run in place finds done, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from intermission.composition.locations import is_url, open_ledger
from intermission.errors import UsageError
from intermission.ports.ledger import Ledger
from intermission.settings import Settings


def shared_ledger(
    settings: Settings, *, patience_s: float | None = None
) -> Callable[[], Ledger] | None:
    """How to open the ledger that the settings name; None where each workspace has its own.

    `patience_s` is how long its calls wait for a database that is away; the ledger's own unless
    given.
    """
    if settings.ledger is None:
        return None
    if not is_url(settings.ledger):
        path = Path(settings.ledger).expanduser().resolve()
        return partial(open_ledger, path, settings.lost_max)
    if settings.ledger.startswith(("postgresql://", "postgres://")):
        return partial(_open_postgres, settings.ledger, patience_s, settings.lost_max)
    raise UsageError(
        f"a ledger cannot be at {settings.ledger}.",
        remedy="Give postgresql://host/name, or the path of a SQLite file.",
    )


def _open_postgres(url: str, patience_s: float | None, lost_max: int) -> Ledger:
    from intermission.backends.ledger.postgres import PostgresLedger

    if patience_s is None:
        return PostgresLedger(url, lost_max=lost_max)
    return PostgresLedger(url, lost_max=lost_max, patience_s=patience_s)
