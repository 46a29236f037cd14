"""Hand-written SQL: batches of SKIP LOCKED claims, and no more than a claim and an end must mean.

That is attempts, fence, lease and worker; compare-and-set on the fence; an event for every change;
a question after every batch whether anything is left. It is the limit for what keeps as much.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from intermission.engine.backlog import BATCH_MAX
from queues.starts import started

WORKERS = 2
SETTINGS = f"{WORKERS} workers, batches of {BATCH_MAX:,}, LISTEN/NOTIFY, one COPY"
_POLL_S = 1.0

SCHEMA = """
CREATE TABLE tasks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job bigint NOT NULL, step integer NOT NULL,
    idx integer NOT NULL, state text NOT NULL, attempts integer NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0, lease_s double precision, worker text, started_ms bigint,
    ended_ms bigint, key text NOT NULL, chunk text, result text, UNIQUE (job, step, idx)
);
CREATE INDEX claimable ON tasks (job, id) WHERE state = 'pending';
CREATE INDEX held ON tasks (job) WHERE state = 'leased';
CREATE TABLE events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at_ms bigint NOT NULL, job bigint NOT NULL,
    task bigint NOT NULL, was text NOT NULL, now text NOT NULL, fence bigint NOT NULL, worker text
);
"""
_COPY = "COPY tasks (job, step, idx, state, key, chunk) FROM STDIN"
_CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM tasks WHERE job = 1 AND state = 'pending' ORDER BY id LIMIT %(count)s
    FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE tasks SET state = 'leased', fence = fence + 1, attempts = attempts + 1, worker = 'bench',
        lease_s = extract(epoch FROM clock_timestamp()) + 60, started_ms = %(now_ms)s
    WHERE id = ANY(ARRAY(SELECT id FROM picked))
    RETURNING id, fence, attempts, step, idx, key, chunk
), told AS (
    INSERT INTO events (at_ms, job, task, was, now, fence, worker)
    SELECT %(now_ms)s, 1, id, 'pending', 'leased', fence, 'bench' FROM claimed
)
SELECT * FROM claimed
"""
_COMPLETE = """
WITH ended AS (
    SELECT * FROM unnest(%(ids)s::bigint[], %(fences)s::bigint[], %(results)s::text[])
        AS e (id, fence, result)
), done AS (
    UPDATE tasks AS t SET state = 'done', result = e.result, worker = NULL, lease_s = NULL,
        ended_ms = %(now_ms)s
    FROM ended AS e WHERE t.id = e.id AND t.fence = e.fence AND t.state = 'leased'
    RETURNING t.id, t.fence
), told AS (
    INSERT INTO events (at_ms, job, task, was, now, fence, worker)
    SELECT %(now_ms)s, 1, id, 'leased', 'done', fence, 'bench' FROM done
)
SELECT count(*) FROM done
"""
_UNFINISHED = """
SELECT EXISTS (SELECT 1 FROM tasks WHERE job = 1 AND state = 'pending')
    OR EXISTS (SELECT 1 FROM tasks WHERE job = 1 AND state = 'leased')
"""


def prepare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(SCHEMA)


def insert(db: psycopg.Connection, first: int, count: int, step: int = 1) -> None:
    rows = (f'1\t{step}\t{n}\tpending\t{n:040x}\t{{"n":{n}}}' for n in range(first, first + count))
    with db.transaction():
        with db.cursor().copy(_COPY) as copy:
            copy.write("\n".join(rows) + "\n")
        db.execute("NOTIFY bench")


def claim(db: psycopg.Connection, count: int = BATCH_MAX) -> list[Any]:
    return db.execute(_CLAIM, {"count": count, "now_ms": time.time_ns() // 1_000_000}).fetchall()


def complete(db: psycopg.Connection, rows: list[Any]) -> None:
    ids, fences = [row[0] for row in rows], [row[1] for row in rows]
    values = {"ids": ids, "fences": fences, "results": ["null"] * len(ids)}
    with db.transaction():
        db.execute(_COMPLETE, values | {"now_ms": time.time_ns() // 1_000_000})
        db.execute(_UNFINISHED).fetchall()


def work(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("LISTEN bench")
        while True:
            while rows := claim(db):
                for row in rows:
                    if row[3] == 2:
                        started(row[4])
                complete(db, rows)
            for _ in db.notifies(timeout=_POLL_S, stop_after=1):
                pass


@contextmanager
def client(url: str, folder: Path) -> Iterator[Client]:
    with psycopg.connect(url, autocommit=True) as db:
        yield Client(db)


class Client:
    def __init__(self, db: psycopg.Connection) -> None:
        self._db, self._next = db, 0

    def enqueue(self, count: int) -> None:
        insert(self._db, self._next, count)
        self._next += count

    def done(self) -> int:
        row = self._db.execute("SELECT count(*) FROM tasks WHERE state = 'done'").fetchone()
        return row[0] if row else 0

    def send(self, n: int) -> None:
        insert(self._db, n, 1, step=2)
