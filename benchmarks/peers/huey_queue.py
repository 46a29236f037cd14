"""huey: tasks in SQLite, run by its consumer with two worker processes, results stored.

A task leaves huey's queue when a worker takes it, so a crash loses it; there is no stricter
setting.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

from huey import SqliteHuey
from judging import require

SETTINGS = "SqliteHuey, consumer with 2 processes, results kept; fsync=True (FULL), its WAL"


def _consume(huey: SqliteHuey) -> None:
    huey.create_consumer(workers=2, worker_type="process", periodic=False, initial_delay=0.01).run()


def run(count: int, folder: Path) -> float:
    huey = SqliteHuey("bench", filename=str(folder / "huey.sqlite"), fsync=True)

    @huey.task()
    def noop(number: int) -> int:
        return number

    found = [
        huey.storage.sql(f"PRAGMA {name}", results=True)[0][0]
        for name in ("journal_mode", "synchronous")
    ]
    require(found == ["wal", 2], f"huey runs with {found}")
    began_s = time.perf_counter()
    for number in range(count):
        noop(number)
    huey.storage.close()
    consumer = multiprocessing.get_context("fork").Process(target=_consume, args=(huey,))
    consumer.start()
    while huey.result_count() < count:
        time.sleep(0.01)
    took_s = time.perf_counter() - began_s
    os.kill(consumer.pid or 0, signal.SIGTERM)
    consumer.join()
    return took_s
