"""DBOS: a workflow per task, put on a queue and run by threads of the same process."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import sqlalchemy as sa
from dbos import DBOS
from judging import require

SETTINGS = "workflows on a queue, as many at a time as it likes; WAL set by us, its FULL"


@DBOS.workflow()
def noop(number: int) -> int:
    return number


def run(count: int, folder: Path) -> float:
    path = folder / "dbos.sqlite"
    with sqlite3.connect(path) as db:  # it chooses none, and gets a rollback journal
        db.execute("PRAGMA journal_mode=WAL")
    dbos = DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{path}",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    try:
        queue = DBOS.register_queue("bench", polling_interval_sec=0.01)
        with dbos._sys_db.engine.connect() as connection:
            found = [
                connection.execute(sa.text(f"PRAGMA {name}")).scalar()
                for name in ("journal_mode", "synchronous")
            ]
        require(found == ["wal", 2], f"DBOS runs with {found}")
        began_s = time.perf_counter()
        handles = [queue.enqueue(noop, number) for number in range(count)]
        results = [handle.get_result(polling_interval_sec=0.01) for handle in handles]
        took_s = time.perf_counter() - began_s
        require(results == list(range(count)), "DBOS lost results")
        return took_s
    finally:
        DBOS.destroy()
