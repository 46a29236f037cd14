"""Intermission: `intermission worker`, and jobs put into its ledger as any program would.

Tasks to count are the light ones of one job over one source, planned by a worker. A task to wait
for is a job of its own, over a source of its own, submitted by a process that stays up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from intermission.composition.fleet import Fleet
from intermission.model import TaskState
from intermission.pipeline import load
from intermission.settings import Settings

WORKERS = 2
SETTINGS = f"{WORKERS} workers with 1 slot each, NOTIFY notifier, one job"
_PIPELINES = Path(__file__).with_name("pipelines.py")


def prepare(url: str) -> None:
    Fleet(Settings(ledger=url)).open_ledger().close()


def work(url: str) -> None:
    argv = [sys.executable, "-m", "intermission", "worker", "--ledger", url]
    os.execv(sys.executable, [*argv, "--slots", "1", "--pipeline", str(_PIPELINES)])


@contextmanager
def client(url: str, folder: Path) -> Iterator[Client]:
    yield Client(Fleet(Settings(ledger=url)), folder)


class Client:
    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self._fleet, self._folder = fleet, folder

    def _source(self, name: str) -> str:
        path = self._folder / name
        path.write_text(name)
        return str(path)

    def enqueue(self, count: int) -> None:
        self._fleet.submit(
            load(f"{_PIPELINES}:light"), self._source(f"{count}.txt"), {"count": count}
        )

    def done(self) -> int:
        rows = self._fleet.ledger.jobs()
        return sum(row.counts.get("nothing", {}).get(TaskState.DONE, 0) for row in rows)

    def send(self, n: int) -> None:
        self._fleet.submit(load(f"{_PIPELINES}:told"), self._source(f"{n}.txt"), {"n": n})
