"""The limit: the same claims and completions as hand-written SQL, without an engine.

It keeps what a claim and a completion mean (attempts, fence and lease; compare-and-set; an
event for every change; batches of the size the engine uses; WAL and synchronous=FULL) and can
find what is claimable and whose lease has ended. It leaves out everything else: no identity
is computed, nothing is validated, nothing is watched, and a light task crosses no process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import apsw
from judging import require

from intermission.engine.backlog import BATCH_MAX

PROCESSES = 2
"""As many as Intermission has slots here."""
SETTINGS = f"apsw; apart: {PROCESSES} processes; WAL, synchronous=FULL, batches of {BATCH_MAX}"

_WORKER = f"{socket.gethostname()}-{os.getpid()}-0123abcd"

_SCHEMA = """
CREATE TABLE tasks (
    id INTEGER PRIMARY KEY, job INTEGER NOT NULL, step INTEGER NOT NULL, idx INTEGER NOT NULL,
    state TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, fence INTEGER NOT NULL DEFAULT 0,
    lease_s REAL, worker TEXT, started_ms INTEGER, ended_ms INTEGER,
    key TEXT NOT NULL, chunk TEXT, result TEXT,
    UNIQUE (job, step, idx)
) STRICT;
CREATE INDEX claimable ON tasks (job, id) WHERE state = 'pending';
CREATE INDEX held ON tasks (job, lease_s) WHERE state = 'leased';
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, job INTEGER NOT NULL, task INTEGER NOT NULL,
    was TEXT NOT NULL, now TEXT NOT NULL, fence INTEGER NOT NULL, worker TEXT
) STRICT;
"""
_INSERT = "INSERT INTO tasks (job, step, idx, state, key, chunk) VALUES (1, 1, ?, 'pending', ?, ?)"
_CLAIM = """
UPDATE tasks SET state = 'leased', fence = fence + 1, attempts = attempts + 1, worker = ?,
    lease_s = ?, started_ms = ?
WHERE id IN (SELECT id FROM tasks WHERE job = 1 AND state = 'pending' ORDER BY id LIMIT ?)
RETURNING id, fence, attempts, step, idx, key, chunk
"""
_COMPLETE = """
UPDATE tasks SET state = 'done', result = ?, worker = NULL, lease_s = NULL, ended_ms = ?
WHERE id = ? AND fence = ? AND state = 'leased'
"""
_EVENT = """
INSERT INTO events (at_ms, job, task, was, now, fence, worker) VALUES (?, 1, ?, ?, ?, ?, ?)
"""
_UNFINISHED = """
SELECT EXISTS (SELECT 1 FROM tasks WHERE job = 1 AND state = 'pending')
    OR EXISTS (SELECT 1 FROM tasks WHERE job = 1 AND state = 'leased')
"""

Row = tuple[Any, ...]


def light(count: int, folder: Path) -> float:
    """No-op tasks, each run where it was claimed."""
    return _drive(count, folder, lambda rows: [_noop(row) for row in rows])


def light_apart(count: int, folder: Path) -> float:
    """No-op tasks, run in other processes, so that a task that crashes takes nothing along."""
    with _pool(folder) as pool:
        size = BATCH_MAX // PROCESSES
        return _drive(count, folder, lambda rows: pool.map(_noop, rows, chunksize=size))


def receipted(count: int, folder: Path) -> float:
    """Each task leaves one fsynced, create-only file, written by one of those processes."""
    for name in ("receipts", "temp"):
        (folder / name).mkdir()
    with _pool(folder) as pool:
        return _drive(count, folder, lambda rows: pool.map(_commit, rows, chunksize=32))


def _pool(folder: Path) -> Pool:
    return multiprocessing.get_context("fork").Pool(PROCESSES, _enter, (folder,))


def _drive(count: int, folder: Path, work: Callable[[Sequence[Row]], list[str]]) -> float:
    db = apsw.Connection(str(folder / "limit.sqlite"))
    db.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL").fetchall()
    found = db.execute("PRAGMA journal_mode; PRAGMA synchronous").fetchall()
    require(found == [("wal",), (2,)], f"SQLite runs with {found}")
    db.execute(_SCHEMA)
    began_s = time.perf_counter()
    with db:
        rows = ((n, f"{n:040x}", f'{{"n":{n}}}') for n in range(count))
        db.executemany(_INSERT, rows)
    while rows := _claim(db):
        _complete(db, rows, work(rows))
    took_s = time.perf_counter() - began_s
    done = db.execute("SELECT count(*) FROM tasks WHERE state = 'done'").fetchall()[0][0]
    events = db.execute("SELECT count(*) FROM events").fetchall()[0][0]
    require((done, events) == (count, 2 * count), f"{done} done, {events} events")
    db.close()
    return took_s


def _claim(db: apsw.Connection) -> list[Row]:
    now_ms = time.time_ns() // 1_000_000
    db.execute("BEGIN IMMEDIATE")
    rows = db.execute(_CLAIM, (_WORKER, time.monotonic() + 60, now_ms, BATCH_MAX)).fetchall()
    events = [(now_ms, row[0], "pending", "leased", row[1], _WORKER) for row in rows]
    db.executemany(_EVENT, events)
    db.execute("COMMIT")
    return rows


def _complete(db: apsw.Connection, rows: Sequence[Row], results: list[str]) -> None:
    now_ms = time.time_ns() // 1_000_000
    db.execute("BEGIN IMMEDIATE")
    ends = [(result, now_ms, row[0], row[1]) for row, result in zip(rows, results, strict=True)]
    db.executemany(_COMPLETE, ends)
    events = [(now_ms, row[0], "leased", "done", row[1], _WORKER) for row in rows]
    db.executemany(_EVENT, events)
    db.execute(_UNFINISHED).fetchall()
    db.execute("COMMIT")


def _noop(row: Row) -> str:
    return "null"


_folder = Path()


def _enter(folder: Path) -> None:
    global _folder
    _folder = folder


def _commit(row: Row) -> str:
    """Temporary file, fsync, link without replace, unlink, fsync of the folder."""
    key = row[5]
    temp, final = f"{_folder}/temp/{key}", f"{_folder}/receipts/{key}.json"
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(fd, json.dumps({"key": key, "fence": row[1], "result": "null"}).encode())
    os.fsync(fd)
    os.close(fd)
    os.link(temp, final)
    Path(temp).unlink()
    fd = os.open(f"{_folder}/receipts", os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)
    return "null"
