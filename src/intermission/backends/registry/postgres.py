"""The registry in PostgreSQL, beside the ledger, so that several servers share it.

Every change can be repeated without harm, so one whose outcome is unknown simply is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from intermission.backends.ledger.postgres.connection import can_be_repeated, pool_of, translated
from intermission.backends.registry.sql import Run, SqlRegistry

T = TypeVar("T")

PATIENCE_S = 10.0
_PAUSE_S = 0.1
_SCHEMA = """
SELECT pg_advisory_xact_lock(18766, 1);
CREATE SCHEMA IF NOT EXISTS intermission;
CREATE TABLE IF NOT EXISTS intermission.registered_workers (
    id            text PRIMARY KEY CHECK (id <> ''),
    name          text NOT NULL,
    can           text NOT NULL,
    metadata      text NOT NULL,
    version       text NOT NULL,
    registered_ms bigint NOT NULL,
    lease_secret       bytea NOT NULL,
    heard_ms      bigint,
    slots         integer NOT NULL,
    busy          integer NOT NULL,
    revoked_ms    bigint
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS intermission.worker_keys (
    prefix     text PRIMARY KEY,
    worker_id  text NOT NULL REFERENCES intermission.registered_workers (id),
    sha256     text NOT NULL,
    expires_ms bigint
);
CREATE INDEX IF NOT EXISTS worker_keys_of_worker ON intermission.worker_keys (worker_id);
"""


class PostgresRegistry(SqlRegistry):
    """Uses the process's pool of connections to the address."""

    workers_table = "intermission.registered_workers"
    keys_table = "intermission.worker_keys"
    if_there = "ON CONFLICT DO NOTHING"

    def __init__(self, url: str) -> None:
        self._url = url
        self._change(lambda run: run(_SCHEMA))

    def close(self) -> None:
        """The pool is the process's."""

    def _change(self, act: Callable[[Run], T]) -> T:
        def change(connection: Any) -> T:
            with connection.transaction():
                return act(lambda sql, *values: _rows(connection, sql, values))

        return self._patiently(change)

    def _run(self, sql: str, *values: Any) -> list[Any]:
        return self._patiently(lambda connection: _rows(connection, sql, values))

    def _patiently(self, act: Callable[[Any], T]) -> T:
        """What `act` answers; asked again while the database may only be away for a moment."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            with translated(self._url):
                try:
                    with pool_of(self._url).connection(timeout=PATIENCE_S) as connection:
                        return act(connection)
                except Exception as e:
                    if not can_be_repeated(e) or time.monotonic() > until_s:
                        raise
            time.sleep(_PAUSE_S)


def _rows(connection: Any, sql: str, values: tuple[Any, ...]) -> list[Any]:
    # Without values there may be several statements in one text.
    cursor = connection.execute(sql.replace("?", "%s"), values or None)
    return cursor.fetchall() if cursor.description else []
