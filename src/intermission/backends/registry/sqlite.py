"""The registry in a SQLite file of its own, so that heartbeats never wait for the ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw

from intermission.backends.registry.sql import Run, SqlRegistry
from intermission.errors import LedgerError, LedgerTooNew, fault_from_os

T = TypeVar("T")

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


class SqliteRegistry(SqlRegistry):
    """One connection behind one lock: its calls take microseconds."""

    workers_table = "workers"
    keys_table = "keys"

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

    def close(self) -> None:
        self._db.close()

    def _run(self, sql: str, *values: Any) -> list[Any]:
        with self._lock, self._translated():
            return self._db.execute(sql, values).fetchall()

    def _change(self, act: Callable[[Run], T]) -> T:
        with self._lock, self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                done = act(lambda sql, *values: self._db.execute(sql, values).fetchall())
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            return done

    def _prepare(self) -> None:
        with self._translated():
            self._db.set_busy_timeout(BUSY_TIMEOUT_MS)
        self._run("PRAGMA journal_mode=WAL")
        self._run("PRAGMA synchronous=FULL")
        self._run("PRAGMA foreign_keys=ON")
        self._change(self._create)

    def _create(self, run: Run) -> None:
        ((found,),) = run("PRAGMA user_version")
        if found > SCHEMA_VERSION:
            raise LedgerTooNew(
                f"{self._path} has version {found}; this program knows {SCHEMA_VERSION}.",
                remedy="Upgrade Intermission on this server.",
            )
        if found == 0:
            run(_SCHEMA)
            run(f"PRAGMA user_version={SCHEMA_VERSION}")

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
