"""persist-queue: an acknowledged queue in SQLite, emptied by the process that filled it.

It runs no tasks itself, so the no-op costs nothing here: no process is crossed.
"""

from __future__ import annotations

import time
from pathlib import Path

from judging import require
from persistqueue import SQLiteAckQueue

SETTINGS = "SQLiteAckQueue, put, get and ack in one process; its WAL, its synchronous=FULL"


def run(count: int, folder: Path) -> float:
    queue = SQLiteAckQueue(str(folder), auto_commit=True)
    found = [
        queue._putter.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous")
    ]
    require(found == ["wal", 2], f"persist-queue runs with {found}")
    began_s = time.perf_counter()
    for number in range(count):
        queue.put(number)
    for _ in range(count):
        item = queue.get(block=False, raw=True)
        queue.ack(item)
    took_s = time.perf_counter() - began_s
    require(queue.acked_count() == count, "persist-queue lost items")
    queue.close()
    return took_s
