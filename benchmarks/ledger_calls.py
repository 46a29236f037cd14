"""The calls that `scale_jobs.py` times, and the jobs it fills a ledger with.

The one place of that benchmark that knows the ledger's port.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from judging import require

from intermission.backends.ledger.postgres import PostgresLedger
from intermission.backends.ledger.postgres.connection import close_pools
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.model import Job, Lease, Reason
from intermission.ports.ledger import Ledger
from intermission.testing.jobs import completion, job, step, submit

TTL_S = 3600.0
PAGE = 100
_DAY_MS = 24 * 3600 * 1000


def open_ledger(place: str) -> Ledger:
    """A ledger on PostgreSQL for a URL, on SQLite for a path."""
    return PostgresLedger(place) if "://" in place else SqliteLedger(Path(place))


@contextmanager
def without_syncs(place: str) -> Iterator[Ledger]:
    """The ledger while it is filled: no disk has to wait, and nothing is timed."""
    ledger = open_ledger(place)
    if isinstance(ledger, SqliteLedger):
        ledger.database.connection.execute("PRAGMA synchronous=OFF")
        yield ledger
    else:
        _alter_database(place, "SET synchronous_commit = off")
        yield ledger
        _alter_database(place, "RESET synchronous_commit")
    ledger.close()


def _alter_database(url: str, how: str) -> None:
    name = urlsplit(url).path.removeprefix("/")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} {how}".encode())
    close_pools()  # what is open goes by what held before


def add_ready(ledger: Ledger, n: int) -> Job:
    """A job of two steps, whose first may be claimed by anybody."""
    return submit(ledger, job(step("fetch"), step("pack", one=["fetch"]), key=f"ready{n:08}"))


def add_waiting(ledger: Ledger, n: int) -> Job:
    """An active job that gives a worker without a GPU nothing: for its label, or until tomorrow."""
    if n % 2:
        steps = step("fetch", needs="gpu"), step("pack", one=["fetch"])
        return submit(ledger, job(*steps, key=f"waiting{n:08}"))
    steps = step("fetch"), step("pack", one=["fetch"])
    at_ms = time.time_ns() // 1_000_000 + _DAY_MS
    return submit(ledger, job(*steps, key=f"waiting{n:08}", not_before_ms=at_ms))


def claim_something(ledger: Ledger) -> Lease:
    found = ledger.claim("bench", 1, lease_ttl_s=TTL_S)
    require(len(found) == 1, f"{len(found)} tasks were claimed")
    return found[0]


def give_back(ledger: Ledger, lease: Lease) -> None:
    """So that there is as much to claim as before."""
    ledger.release([(lease.task_id, lease.fence)], reason=Reason.DRAINED)


def claim_nothing(ledger: Ledger) -> None:
    found = ledger.claim("bench", 1, lease_ttl_s=TTL_S)
    require(not found, f"{len(found)} tasks were claimed")


def finish(ledger: Ledger, made: Job) -> None:
    """Complete the rest of a job, of which somebody holds the first task or nobody holds any."""
    ledger.rescue(dead=["bench"])
    while found := ledger.claim("bench", 2, lease_ttl_s=TTL_S):
        require({lease.job_key for lease in found} == {made.key}, "another job was claimed")
        ledger.complete([completion(ledger, made, lease) for lease in found])


def rescue(ledger: Ledger) -> None:
    found = ledger.rescue()
    require(found == 0, f"{found} tasks were rescued")


def first_page(ledger: Ledger) -> None:
    found = ledger.jobs(limit=PAGE)
    require(len(found) == PAGE, f"{len(found)} jobs were listed")
