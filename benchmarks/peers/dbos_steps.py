"""DBOS: one workflow with so many steps. `dbos_steps.py URL COUNT` runs it once, and once before.

On SQLite the journal is set to WAL by us, as in the other contests; FULL is its own default.
"""

from __future__ import annotations

import os
import sqlite3
import sys

from dbos import DBOS

from peers.step_times import PLACE, nothing_but_times

WARM = 5


@DBOS.step()
def note(n: int) -> int:
    return nothing_but_times(n)


@DBOS.workflow()
def chain(count: int) -> int:
    return sum(note(n) for n in range(count))


def main(url: str, count: int) -> None:
    if url.startswith("sqlite:///"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as db:
            db.execute("PRAGMA journal_mode=WAL")
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )
    DBOS.launch()
    try:
        times = os.environ[PLACE]
        os.environ[PLACE] = f"{times}.warm"
        chain(WARM)
        os.environ[PLACE] = times
        chain(count)
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
