"""The registry in PostgreSQL, beside the ledger, so that several servers share it.

Every change can be repeated without harm, so one whose outcome is unknown simply is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

from intermission.backends.ledger.postgres.connection import can_be_repeated, pool_of, translated
from intermission.ports.registry import KeyRow, WorkerRow

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
_WORKER = (
    "w.id, w.name, w.can, w.metadata, w.version, w.registered_ms, w.lease_secret, w.heard_ms, "
    "w.slots, w.busy, w.revoked_ms"
)
_INSERT_KEY = (
    "INSERT INTO intermission.worker_keys (prefix, worker_id, sha256, expires_ms) "
    "VALUES (%s, %s, %s, %s) ON CONFLICT (prefix) DO NOTHING"
)


class PostgresRegistry:
    """Uses the process's pool of connections to the address."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._change(lambda tx: tx.execute(_SCHEMA))

    def register(self, worker: WorkerRow, key: KeyRow) -> None:
        def insert(tx: Any) -> None:
            tx.execute(
                "INSERT INTO intermission.registered_workers VALUES "
                "(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO NOTHING",
                (
                    worker.id,
                    worker.name,
                    json.dumps(worker.can),
                    json.dumps(worker.metadata),
                    worker.version,
                    worker.registered_ms,
                    worker.lease_secret,
                    worker.heard_ms,
                    worker.slots,
                    worker.busy,
                    worker.revoked_ms,
                ),
            )
            tx.execute(_INSERT_KEY, (key.prefix, worker.id, key.sha256, key.expires_ms))

        self._change(insert)

    def rotate(self, id: str, key: KeyRow, *, old_until_ms: int) -> bool:
        def insert(tx: Any) -> bool:
            known = "SELECT 1 FROM intermission.registered_workers WHERE id = %s FOR UPDATE"
            if tx.execute(known, (id,)).fetchone() is None:
                return False
            tx.execute(
                "UPDATE intermission.worker_keys "
                "SET expires_ms = least(coalesce(expires_ms, %s), %s) "
                "WHERE worker_id = %s AND prefix <> %s",
                (old_until_ms, old_until_ms, id, key.prefix),
            )
            tx.execute(_INSERT_KEY, (key.prefix, id, key.sha256, key.expires_ms))
            return True

        return self._change(insert)

    def revoke(self, id: str, *, at_ms: int) -> bool:
        sql = (
            "UPDATE intermission.registered_workers SET revoked_ms = coalesce(revoked_ms, %s) "
            "WHERE id = %s"
        )
        return self._change(lambda tx: tx.execute(sql, (at_ms, id)).rowcount > 0)

    def find(self, prefix: str) -> tuple[WorkerRow, KeyRow] | None:
        sql = (
            f"SELECT {_WORKER}, k.prefix, k.sha256, k.expires_ms "
            "FROM intermission.worker_keys AS k "
            "JOIN intermission.registered_workers AS w ON w.id = k.worker_id WHERE k.prefix = %s"
        )
        row = self._read(lambda tx: tx.execute(sql, (prefix,)).fetchone())
        return None if row is None else (_worker(row[:11]), KeyRow(*row[11:]))

    def seen(self, id: str, *, at_ms: int, slots: int, busy: int, version: str) -> None:
        sql = (
            "UPDATE intermission.registered_workers "
            "SET heard_ms = %s, slots = %s, busy = %s, version = %s WHERE id = %s"
        )
        self._change(lambda tx: tx.execute(sql, (at_ms, slots, busy, version, id)))

    def workers(self) -> list[WorkerRow]:
        sql = (
            f"SELECT {_WORKER} FROM intermission.registered_workers AS w "
            "ORDER BY w.registered_ms, w.id"
        )
        return [_worker(row) for row in self._read(lambda tx: tx.execute(sql).fetchall())]

    def close(self) -> None:
        """The pool is the process's."""

    def _change(self, act: Callable[[Any], T]) -> T:
        """One transaction."""

        def change(connection: Any) -> T:
            with connection.transaction():
                return act(connection)

        return self._read(change)

    def _read(self, act: Callable[[Any], T]) -> T:
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


def _worker(row: tuple[Any, ...]) -> WorkerRow:
    id, name, can, metadata, version, registered_ms, lease_secret, *rest = row
    known = json.loads(can), json.loads(metadata)
    return WorkerRow(
        id, name, tuple(known[0]), known[1], version, registered_ms, bytes(lease_secret), *rest
    )
