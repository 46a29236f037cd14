"""The PostgreSQL ledger alone, in one process: many claims, and one claim beside much else."""

from __future__ import annotations

import time
from statistics import median

import psycopg
from database import fresh_database
from judging import require
from queues import handwritten

from intermission.backends.ledger.postgres import PostgresLedger
from intermission.backends.ledger.postgres.connection import close_pools
from intermission.engine.backlog import BATCH_MAX
from intermission.model import Completion, JobState
from intermission.testing.jobs import chunks, completion, fan_job, job, mapped, plan, submit

TTL_S = 600.0
BATCH = 256
_FINISHED = """
INSERT INTO intermission.tasks (job_id, step, idx, state, key, chunk, result, updated_ms)
SELECT %s, 1, n, 'done', lpad(to_hex(n), 40, '0'), '{"n":' || n || '}', 'null', 0
FROM generate_series(0, %s - 1) AS n
"""


def ledger_rates(url: str, count: int) -> tuple[float, float]:
    """Tasks a second that the ledger claims and completes, and that hand-written SQL does."""
    with fresh_database(url) as place:
        ours = count / _ledger(place, count)
        close_pools()
    with fresh_database(url) as place:
        return ours, count / _limit(place, count)


def _ledger(url: str, count: int) -> float:
    own = PostgresLedger(url)
    made = submit(own, fan_job())
    (first,) = own.claim("bench", 1, lease_ttl_s=TTL_S)
    own.complete([completion(own, made, first, chunks(count))])
    began_s, done = time.perf_counter(), 0
    while done < count:
        leases = own.claim("bench", BATCH_MAX, lease_ttl_s=TTL_S)
        own.complete([Completion(lease.task_id, lease.fence, "null") for lease in leases])
        done += len(leases)
    took_s = time.perf_counter() - began_s
    (join,) = own.claim("bench", 1, lease_ttl_s=TTL_S)
    own.complete([Completion(join.task_id, join.fence, "null")])
    require(own.jobs()[0].state is JobState.DONE, "the job has not ended")
    return took_s


def _limit(url: str, count: int) -> float:
    handwritten.prepare(url)
    with psycopg.connect(url, autocommit=True) as db:
        handwritten.insert(db, 0, count)
        db.execute("VACUUM ANALYZE")
        began_s = time.perf_counter()
        while rows := handwritten.claim(db):
            handwritten.complete(db, rows)
        took_s = time.perf_counter() - began_s
        found = db.execute("SELECT count(*) FROM events").fetchone()
        require(found == (2 * count,), f"{found} events")
    return took_s


def claims_beside_finished(
    url: str, finished: list[int], pending: int, claims: int
) -> dict[str, dict[str, float]]:
    """Claims of one task, and of a batch, beside more and more finished ones."""
    own = PostgresLedger(url)
    made = submit(own, job(plan("cut"), mapped("hear", "cut"), key="pending"))
    (first,) = own.claim("bench", 1, lease_ttl_s=TTL_S)
    own.complete([completion(own, made, first, chunks(pending))])
    found: dict[str, dict[str, float]] = {}
    have = 0
    with psycopg.connect(url, autocommit=True) as db:
        for count in finished:
            old = submit(own, job(plan("cut"), mapped("hear", "cut"), key=f"finished{count}"))
            (row,) = own.jobs(old.key)
            db.execute(_FINISHED, (row.id, count - have))
            own.mark(old.key, JobState.DONE)
            db.execute("VACUUM ANALYZE")
            have = count
            found[f"{count:,}"] = _claims(own, claims)
    close_pools()
    return found


def _claims(own: PostgresLedger, count: int) -> dict[str, float]:
    def timed(capacity: int) -> float:
        began_s = time.perf_counter()
        leases = own.claim("bench", capacity, lease_ttl_s=TTL_S)
        took_s = time.perf_counter() - began_s
        require(len(leases) == capacity, f"{len(leases)} leases")
        return took_s * 1000

    single = sorted(timed(1) for _ in range(count))
    batch = [timed(BATCH) for _ in range(max(1, count // 50))]
    return {
        "one_p50_ms": median(single),
        "one_p99_ms": single[int(len(single) * 0.99)],
        "batch_p50_ms": median(batch),
    }
