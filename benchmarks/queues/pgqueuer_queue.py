"""PGQueuer over asyncpg and uvloop, in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import asyncpg
import psycopg
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job

from queues.starts import started

WORKERS = 2
BATCH = 100
SETTINGS = f"{WORKERS} workers, asyncpg, uvloop, batches of {BATCH}, LISTEN/NOTIFY, one enqueue"


def prepare(url: str) -> None:
    async def install() -> None:
        connection = await asyncpg.connect(url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    asyncio.run(install())


def work(url: str) -> None:
    async def life() -> None:
        queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

        @queue.entrypoint("noop")
        async def noop(job: Job) -> None:
            if job.payload:
                started(int(job.payload))

        await queue.run(dequeue_timeout=timedelta(seconds=30), batch_size=BATCH)

    uvloop.run(life())


@contextmanager
def client(url: str, folder: Path) -> Iterator[Client]:
    loop = uvloop.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(url))
    with psycopg.connect(url, autocommit=True) as db:
        yield Client(loop, Queries(AsyncpgDriver(connection)), db)
    loop.run_until_complete(connection.close())
    loop.close()


class Client:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, queries: Queries, db: psycopg.Connection
    ) -> None:
        self._loop, self._queries, self._db = loop, queries, db

    def enqueue(self, count: int) -> None:
        names, priorities = ["noop"] * count, [0] * count
        self._loop.run_until_complete(self._queries.enqueue(names, [None] * count, priorities))

    def done(self) -> int:
        sql = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"
        row = self._db.execute(sql).fetchone()
        return row[0] if row else 0

    def send(self, n: int) -> None:
        self._loop.run_until_complete(self._queries.enqueue("noop", str(n).encode(), 0))
