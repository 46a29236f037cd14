"""Work while somebody holds a snapshot, so that nothing dead can be vacuumed away.

`held_snapshot.py NAME SECONDS URL` prints, for thirds of that time, tasks a second and how long
claims took. Intermission and the hand-written queue work at a pace, a claim of a hundred tasks ten
times a second, so that both leave equally much behind; Procrastinate claims one by one, as fast as
it can.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import psycopg

QUEUES = ("intermission", "limit", "procrastinate")
TAKE = 100
EVERY_S = 0.1
JOB = 10_000
_TTL_S = 600.0
Step = Callable[[], tuple[float, int]]
"""Claim and complete once: how long the claim took, and how many tasks that were."""


def measure(name: str, seconds: float, url: str) -> list[dict[str, float]] | None:
    """Thirds of a time under a snapshot, in a fresh process; None without the package."""
    argv = [sys.executable, __file__, name, str(seconds), url]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if "ModuleNotFoundError" in done.stderr and name == "procrastinate":
            return None
        raise RuntimeError(f"{name} under a snapshot failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main(name: str, seconds: float, url: str) -> None:
    steps = {"intermission": _ours, "limit": _handwritten, "procrastinate": _procrastinate}
    step = steps[name](url)
    step()
    with _held(url):
        pause_s = 0.0 if name == "procrastinate" else EVERY_S
        print(json.dumps([_third(step, seconds / 3, pause_s) for _ in range(3)]))


@contextmanager
def _held(url: str) -> Iterator[None]:
    """What a forgotten backup or report does to a database."""
    with psycopg.connect(url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM pg_class").fetchall()
        yield


def _third(step: Step, seconds: float, pause_s: float) -> dict[str, float]:
    began_s = time.perf_counter()
    took_ms: list[float] = []
    tasks = 0
    while (at_s := time.perf_counter() - began_s) < seconds:
        claim_s, count = step()
        took_ms.append(claim_s * 1000)
        tasks += count
        time.sleep(max(0.0, pause_s - (time.perf_counter() - began_s - at_s)))
    took_ms.sort()
    return {
        "tasks_per_s": tasks / (time.perf_counter() - began_s),
        "claim_p50_ms": median(took_ms),
        "claim_p99_ms": took_ms[int(len(took_ms) * 0.99)],
    }


def _ours(url: str) -> Step:
    """Jobs of ten thousand tasks, one after the other."""
    from intermission.backends.ledger.postgres import PostgresLedger
    from intermission.model import Completion
    from intermission.testing.jobs import chunks, completion, job, mapped, plan, submit

    ledger, jobs = PostgresLedger(url), 0

    def step() -> tuple[float, int]:
        nonlocal jobs
        began_s = time.perf_counter()
        leases = ledger.claim("bench", TAKE, lease_ttl_s=_TTL_S)
        took_s = time.perf_counter() - began_s
        if leases:
            ledger.complete([Completion(one.task_id, one.fence, "null") for one in leases])
        else:
            made = submit(ledger, job(plan("cut"), mapped("hear", "cut"), key=f"job{jobs}"))
            jobs += 1
            (first,) = ledger.claim("bench", 1, lease_ttl_s=_TTL_S)
            ledger.complete([completion(ledger, made, first, chunks(JOB))])
        return took_s, len(leases)

    return step


def _handwritten(url: str) -> Step:
    from queues.handwritten import claim, complete, insert, prepare

    prepare(url)
    db, put = psycopg.connect(url, autocommit=True), 0

    def step() -> tuple[float, int]:
        nonlocal put
        began_s = time.perf_counter()
        rows = claim(db, TAKE)
        took_s = time.perf_counter() - began_s
        if rows:
            complete(db, rows)
        else:
            insert(db, put, JOB)
            put += JOB
        return took_s, len(rows)

    return step


def _procrastinate(url: str) -> Step:
    """Its own fetch and finish of a job, without the worker around them."""
    import asyncio

    from procrastinate.jobs import Status
    from queues.procrastinate_queue import _app, prepare

    prepare(url)
    loop, (app, noop) = asyncio.new_event_loop(), _app(url)
    loop.run_until_complete(app.open_async())
    manager = app.job_manager
    worker = loop.run_until_complete(manager.register_worker())

    def step() -> tuple[float, int]:
        began_s = time.perf_counter()
        job: Any = loop.run_until_complete(manager.fetch_job(queues=None, worker_id=worker))
        took_s = time.perf_counter() - began_s
        if job is None:
            new = ({"n": -1} for _ in range(JOB))
            loop.run_until_complete(noop.batch_defer_async(*new))
            return took_s, 0
        loop.run_until_complete(manager.finish_job(job, status=Status.SUCCEEDED, delete_job=False))
        return took_s, 1

    return step


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
