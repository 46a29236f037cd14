"""The registry in SQL: two tables, and the same statements for every database.

A database says how it names the tables and how it runs statements; nothing here knows which it is.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from intermission.ports.registry import KeyRow, WorkerRow

T = TypeVar("T")

Run = Callable[..., list[Any]]
"""Runs a statement with the values of its question marks; the rows it answers."""

_WORKER = (
    "w.id, w.name, w.can, w.metadata, w.version, w.registered_ms, w.lease_secret, w.heard_ms, "
    "w.slots, w.busy, w.revoked_ms"
)


class SqlRegistry(ABC):
    """What all databases share."""

    workers_table: ClassVar[str]
    keys_table: ClassVar[str]
    if_there: ClassVar[str] = ""
    """Ends an INSERT where a change whose outcome is unknown is repeated."""

    @abstractmethod
    def _run(self, sql: str, *values: Any) -> list[Any]:
        """Run one statement, by itself."""

    @abstractmethod
    def _change(self, act: Callable[[Run], T]) -> T:
        """Do all that `act` does in one transaction."""

    def register(self, worker: WorkerRow, key: KeyRow) -> None:
        def insert(run: Run) -> None:
            run(
                f"INSERT INTO {self.workers_table} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                f"{self.if_there}",
                *(worker.id, worker.name, json.dumps(worker.can), json.dumps(worker.metadata)),
                *(worker.version, worker.registered_ms, worker.lease_secret, worker.heard_ms),
                *(worker.slots, worker.busy, worker.revoked_ms),
            )
            self._insert_key(run, worker.id, key)

        self._change(insert)

    def rotate(self, id: str, key: KeyRow, *, old_until_ms: int) -> bool:
        def insert(run: Run) -> bool:
            # Written, so that whoever else rotates its keys waits.
            if not run(f"UPDATE {self.workers_table} SET id = id WHERE id = ? RETURNING id", id):
                return False
            run(
                f"UPDATE {self.keys_table} SET expires_ms = ? WHERE worker_id = ? AND prefix <> ? "
                "AND (expires_ms IS NULL OR expires_ms > ?)",
                *(old_until_ms, id, key.prefix, old_until_ms),
            )
            self._insert_key(run, id, key)
            return True

        return self._change(insert)

    def revoke(self, id: str, *, at_ms: int) -> bool:
        sql = "SET revoked_ms = coalesce(revoked_ms, ?) WHERE id = ? RETURNING id"
        return bool(self._run(f"UPDATE {self.workers_table} {sql}", at_ms, id))

    def find(self, prefix: str) -> tuple[WorkerRow, KeyRow] | None:
        rows = self._run(
            f"SELECT {_WORKER}, k.prefix, k.sha256, k.expires_ms FROM {self.keys_table} AS k "
            f"JOIN {self.workers_table} AS w ON w.id = k.worker_id WHERE k.prefix = ?",
            prefix,
        )
        return (_worker(rows[0][:11]), KeyRow(*rows[0][11:])) if rows else None

    def seen(self, id: str, *, at_ms: int, slots: int, busy: int, version: str) -> None:
        sql = "SET heard_ms = ?, slots = ?, busy = ?, version = ? WHERE id = ?"
        self._run(f"UPDATE {self.workers_table} {sql}", at_ms, slots, busy, version, id)

    def workers(self) -> list[WorkerRow]:
        order = "ORDER BY w.registered_ms, w.id"
        rows = self._run(f"SELECT {_WORKER} FROM {self.workers_table} AS w {order}")
        return [_worker(row) for row in rows]

    def _insert_key(self, run: Run, id: str, key: KeyRow) -> None:
        run(
            f"INSERT INTO {self.keys_table} (prefix, worker_id, sha256, expires_ms) "
            f"VALUES (?, ?, ?, ?) {self.if_there}",
            *(key.prefix, id, key.sha256, key.expires_ms),
        )


def _worker(row: tuple[Any, ...]) -> WorkerRow:
    id, name, can, metadata, *rest = row
    return WorkerRow(id, name, tuple(json.loads(can)), json.loads(metadata), *rest)
