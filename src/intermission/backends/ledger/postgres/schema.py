"""The schema of the ledger: numbered migrations, under a lock, and a newer one is refused."""

from __future__ import annotations

from typing import Any

from intermission.backends.ledger.sql.statements import migrations
from intermission.errors import LedgerError, LedgerTooNew

_PACKAGE = "intermission.backends.ledger.postgres"
OLDEST_SERVER = 140000


def migrate(connection: Any) -> None:
    """Bring a database up to this program's schema; raises if it is beyond it.

    Many may try at once: one does it, the others wait and find it done. `connection` commits
    by itself.
    """
    newest = migrations(_PACKAGE)[-1][0]
    if _version(connection) == newest:
        return
    _refuse_unfit(connection)
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(18766, 0)")
        connection.execute("CREATE SCHEMA IF NOT EXISTS intermission")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS intermission.migrations "
            "(version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())"
        )
        found = _version(connection)
        for version, sql in migrations(_PACKAGE):
            if version > found:
                connection.execute(sql)
                connection.execute(
                    "INSERT INTO intermission.migrations (version) VALUES (%s)", (version,)
                )


def _version(connection: Any) -> int:
    """The schema version found, 0 for a database without a ledger."""
    (known,) = connection.execute("SELECT to_regclass('intermission.migrations')").fetchone()
    if known is None:
        return 0
    sql = "SELECT coalesce(max(version), 0) FROM intermission.migrations"
    (version,) = connection.execute(sql).fetchone()
    newest = migrations(_PACKAGE)[-1][0]
    if version > newest:
        raise LedgerTooNew(
            f"the ledger has schema {version}, and this program knows up to {newest}.",
            remedy="A newer Intermission wrote it: upgrade this one.",
        )
    return version


def _refuse_unfit(connection: Any) -> None:
    if connection.info.server_version < OLDEST_SERVER:
        raise LedgerError(
            f"the PostgreSQL server has version {connection.info.server_version // 10000}; "
            f"{OLDEST_SERVER // 10000} or newer is needed.",
            remedy="Upgrade the server.",
        )
    (encoding,) = connection.execute("SHOW server_encoding").fetchone()
    if encoding != "UTF8":
        raise LedgerError(
            f"the database keeps text as {encoding}; the ledger needs UTF8.",
            remedy="Create a database with ENCODING 'UTF8' and use that.",
        )
