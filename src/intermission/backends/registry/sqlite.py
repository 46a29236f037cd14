"""The registry in a SQLite file of its own, so that heartbeats never wait for the ledger."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from intermission.errors import LedgerError, LedgerTooNew, fault_from_os
from intermission.ports.registry import KeyRow, WorkerRow

SCHEMA_VERSION = 1
BUSY_TIMEOUT_MS = 5000

_SCHEMA = """
CREATE TABLE workers (
    id            TEXT PRIMARY KEY CHECK (id <> ''),
    name          TEXT NOT NULL,
    can           TEXT NOT NULL,
    metadata      TEXT NOT NULL,
    version       TEXT NOT NULL,
    registered_ms INTEGER NOT NULL,
    lease_secret       BLOB NOT NULL,
    heard_ms      INTEGER,
    slots         INTEGER NOT NULL,
    busy          INTEGER NOT NULL,
    revoked_ms    INTEGER
) STRICT;
CREATE TABLE keys (
    prefix     TEXT PRIMARY KEY,
    worker_id  TEXT NOT NULL REFERENCES workers (id),
    sha256     TEXT NOT NULL,
    expires_ms INTEGER
) STRICT;
CREATE INDEX keys_of_worker ON keys (worker_id);
"""
_WORKER = (
    "w.id, w.name, w.can, w.metadata, w.version, w.registered_ms, w.lease_secret, w.heard_ms, "
    "w.slots, w.busy, w.revoked_ms"
)


class SqliteRegistry:
    """One connection behind one lock: its calls take microseconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._translated():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = apsw.Connection(str(path))
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def register(self, worker: WorkerRow, key: KeyRow) -> None:
        with self._transaction():
            self._db.execute(
                "INSERT INTO workers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", _values(worker)
            )
            self._insert_key(worker.id, key)

    def rotate(self, id: str, key: KeyRow, *, old_until_ms: int) -> bool:
        with self._transaction():
            if not self._db.execute("SELECT 1 FROM workers WHERE id = ?", (id,)).fetchall():
                return False
            self._db.execute(
                "UPDATE keys SET expires_ms = min(coalesce(expires_ms, ?1), ?1) "
                "WHERE worker_id = ?2",
                (old_until_ms, id),
            )
            self._insert_key(id, key)
            return True

    def revoke(self, id: str, *, at_ms: int) -> bool:
        with self._transaction():
            self._db.execute(
                "UPDATE workers SET revoked_ms = coalesce(revoked_ms, ?) WHERE id = ?", (at_ms, id)
            )
            return self._db.changes() > 0

    def find(self, prefix: str) -> tuple[WorkerRow, KeyRow] | None:
        with self._lock, self._translated():
            rows: list[Any] = self._db.execute(
                f"SELECT {_WORKER}, k.prefix, k.sha256, k.expires_ms "
                "FROM keys AS k JOIN workers AS w ON w.id = k.worker_id WHERE k.prefix = ?",
                (prefix,),
            ).fetchall()
        return (_worker(rows[0][:11]), KeyRow(*rows[0][11:])) if rows else None

    def seen(self, id: str, *, at_ms: int, slots: int, busy: int, version: str) -> None:
        with self._transaction():
            self._db.execute(
                "UPDATE workers SET heard_ms = ?, slots = ?, busy = ?, version = ? WHERE id = ?",
                (at_ms, slots, busy, version, id),
            )

    def workers(self) -> list[WorkerRow]:
        with self._lock, self._translated():
            rows: list[Any] = self._db.execute(
                f"SELECT {_WORKER} FROM workers AS w ORDER BY w.registered_ms, w.id"
            ).fetchall()
        return [_worker(row) for row in rows]

    def close(self) -> None:
        self._db.close()

    def _insert_key(self, id: str, key: KeyRow) -> None:
        self._db.execute(
            "INSERT INTO keys (prefix, worker_id, sha256, expires_ms) VALUES (?, ?, ?, ?)",
            (key.prefix, id, key.sha256, key.expires_ms),
        )

    def _prepare(self) -> None:
        with self._translated():
            self._db.set_busy_timeout(BUSY_TIMEOUT_MS)
            self._db.execute("PRAGMA journal_mode=WAL").fetchall()
            self._db.execute("PRAGMA synchronous=FULL").fetchall()
            self._db.execute("PRAGMA foreign_keys=ON").fetchall()
        with self._transaction():
            answer: list[Any] = self._db.execute("PRAGMA user_version").fetchall()
            found: int = answer[0][0]
            if found > SCHEMA_VERSION:
                raise LedgerTooNew(
                    f"{self._path} has version {found}; this program knows {SCHEMA_VERSION}.",
                    remedy="Upgrade Intermission on this server.",
                )
            if found == 0:
                self._db.execute(_SCHEMA)
                self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Generator[None, None, None]:
        with self._lock, self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self) -> Generator[None, None, None]:
        try:
            yield
        except OSError as e:
            raise fault_from_os(e, "opening the registry", LedgerError, where=self._path) from e
        except apsw.Error as e:
            raise LedgerError(
                f"the registry {self._path} cannot be read or written ({e}).",
                remedy="Check the disk and the file's permissions; without the file, register "
                "the workers anew.",
            ) from e


def _values(worker: WorkerRow) -> tuple[Any, ...]:
    return (
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
    )


def _worker(row: tuple[Any, ...]) -> WorkerRow:
    id, name, can, metadata, *rest = row
    return WorkerRow(id, name, tuple(json.loads(can)), json.loads(metadata), *rest)
