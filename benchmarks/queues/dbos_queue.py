"""DBOS: a workflow per task on a queue that its workers ask often."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
from dbos import DBOS, DBOSClient, EnqueueOptions

from queues.starts import started

WORKERS = 2
POLL_S = 0.01
ENQUEUERS = 8
SETTINGS = f"{WORKERS} workers, queue asked every {POLL_S:g} s, enqueued by {ENQUEUERS} threads"
_OPTIONS: EnqueueOptions = {"workflow_name": "noop", "queue_name": "bench", "app_version": "1"}


@DBOS.workflow(name="noop")
def noop(n: int) -> None:
    if n >= 0:
        started(n)


def _launch(url: str) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "log_level": "ERROR",
            "run_admin_server": False,
            "application_version": "1",
            "executor_id": str(os.getpid()),
        }
    )
    DBOS.launch()
    DBOS.register_queue("bench", polling_interval_sec=POLL_S)


def prepare(url: str) -> None:
    _launch(url)
    DBOS.destroy()


def work(url: str) -> None:
    _launch(url)
    signal.pause()


@contextmanager
def client(url: str, folder: Path) -> Iterator[Client]:
    own = DBOSClient(system_database_url=url)
    with psycopg.connect(url, autocommit=True) as db:
        yield Client(own, db)
    own.destroy()


class Client:
    def __init__(self, own: DBOSClient, db: psycopg.Connection) -> None:
        self._own, self._db = own, db

    def enqueue(self, count: int) -> None:
        with ThreadPoolExecutor(ENQUEUERS) as threads:
            for _ in threads.map(lambda _: self._own.enqueue(_OPTIONS, -1), range(count)):
                pass

    def done(self) -> int:
        sql = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'"
        row = self._db.execute(sql).fetchone()
        return row[0] if row else 0

    def send(self, n: int) -> None:
        self._own.enqueue(_OPTIONS, n)
