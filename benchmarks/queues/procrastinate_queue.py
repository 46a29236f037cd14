"""Procrastinate: asynchronous tasks, so that a worker may have many under way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import procrastinate
import psycopg

from queues.starts import started

WORKERS = 2
CONCURRENCY = 20
SETTINGS = f"{WORKERS} workers, concurrency {CONCURRENCY}, LISTEN/NOTIFY, one batch_defer"


def _app(url: str, *, sync: bool = False) -> tuple[procrastinate.App, procrastinate.tasks.Task]:
    connector = procrastinate.SyncPsycopgConnector if sync else procrastinate.PsycopgConnector
    sizes = {"min_size": 1, "max_size": 4} if sync else {"min_size": 4, "max_size": CONCURRENCY}
    app = procrastinate.App(connector=connector(conninfo=url, **sizes))

    @app.task(name="noop")
    async def noop(n: int) -> None:
        if n >= 0:
            started(n)

    return app, noop


def prepare(url: str) -> None:
    app, _ = _app(url, sync=True)
    with app.open():
        app.schema_manager.apply_schema()


def work(url: str) -> None:
    async def life() -> None:
        app, _ = _app(url)
        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY)

    asyncio.run(life())


@contextmanager
def client(url: str, folder: Path) -> Iterator[Client]:
    app, noop = _app(url, sync=True)
    with app.open(), psycopg.connect(url, autocommit=True) as db:
        yield Client(noop, db)


class Client:
    def __init__(self, noop: procrastinate.tasks.Task, db: psycopg.Connection) -> None:
        self._noop, self._db = noop, db

    def enqueue(self, count: int) -> None:
        self._noop.batch_defer(*({"n": -1} for _ in range(count)))

    def done(self) -> int:
        sql = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"
        row = self._db.execute(sql).fetchone()
        return row[0] if row else 0

    def send(self, n: int) -> None:
        self._noop.defer(n=n)
