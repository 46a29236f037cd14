"""What the PostgreSQL ledger costs, against hand-written batch SQL on the same server.

`postgres.py --url URL` measures on a server of yours; without, it starts the one that the tests
use, with fsync on, in a folder on the disk to measure. The limit keeps what a claim and a
completion mean (SKIP LOCKED, attempts, fence and lease; compare-and-set; an event for every
change; the same batches) and leaves out everything else. The two take turns, round by round.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from judging import require
from psycopg.conninfo import make_conninfo

from intermission.backends.ledger.postgres import PostgresLedger
from intermission.backends.ledger.postgres.connection import close_pools
from intermission.engine.assignment import BATCH_MAX
from intermission.model import Completion, JobState
from intermission.testing.jobs import chunks, completion, fan_job, job, mapped, plan, submit

TTL_S = 60.0
FULL = {"rounds": 5, "tasks": 10_240, "finished": 1_000_000, "pending": 100_000, "claims": 100}
QUICK = {"rounds": 1, "tasks": 1_024, "finished": 5_000, "pending": 2_000, "claims": 5}

_SCHEMA = """
CREATE TABLE tasks (
    id bigint PRIMARY KEY, job bigint NOT NULL, step integer NOT NULL, idx integer NOT NULL,
    state text NOT NULL, attempts integer NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0,
    lease_s double precision, worker text, started_ms bigint, ended_ms bigint,
    key text NOT NULL, chunk text, result text, UNIQUE (job, step, idx)
);
CREATE INDEX claimable ON tasks (job, id) WHERE state = 'pending';
CREATE INDEX held ON tasks (job) WHERE state = 'leased';
CREATE TABLE events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at_ms bigint NOT NULL, job bigint NOT NULL,
    task bigint NOT NULL, was text NOT NULL, now text NOT NULL, fence bigint NOT NULL, worker text
);
"""
_INSERT = """
INSERT INTO tasks (id, job, step, idx, state, key, chunk)
SELECT n, 1, 1, n, 'pending', lpad(to_hex(n), 40, '0'), '{"n":' || n || '}'
FROM generate_series(1, %s) AS n
"""
_CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM tasks WHERE job = 1 AND state = 'pending' ORDER BY id LIMIT %(count)s
    FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE tasks SET state = 'leased', fence = fence + 1, attempts = attempts + 1, worker = 'bench',
        lease_s = extract(epoch FROM clock_timestamp()) + 60, started_ms = %(now_ms)s
    WHERE id = ANY(ARRAY(SELECT id FROM picked))
    RETURNING id, fence, attempts, step, idx, key, chunk
), told AS (
    INSERT INTO events (at_ms, job, task, was, now, fence, worker)
    SELECT %(now_ms)s, 1, id, 'pending', 'leased', fence, 'bench' FROM claimed
)
SELECT * FROM claimed
"""
_COMPLETE = """
WITH ended AS (
    SELECT * FROM unnest(%(ids)s::bigint[], %(fences)s::bigint[], %(results)s::text[])
        AS e (id, fence, result)
), done AS (
    UPDATE tasks AS t SET state = 'done', result = e.result, worker = NULL, lease_s = NULL,
        ended_ms = %(now_ms)s
    FROM ended AS e WHERE t.id = e.id AND t.fence = e.fence AND t.state = 'leased'
    RETURNING t.id, t.fence
), told AS (
    INSERT INTO events (at_ms, job, task, was, now, fence, worker)
    SELECT %(now_ms)s, 1, id, 'leased', 'done', fence, 'bench' FROM done
)
SELECT count(*) FROM done
"""
_UNFINISHED = """
SELECT EXISTS (SELECT 1 FROM tasks WHERE job = 1 AND state = 'pending')
    OR EXISTS (SELECT 1 FROM tasks WHERE job = 1 AND state = 'leased')
"""
_FINISHED = """
INSERT INTO intermission.tasks (job_id, step, idx, state, key, chunk, result, updated_ms)
SELECT %s, 1, n, 'done', lpad(to_hex(n), 40, '0'), '{"n":' || n || '}', 'null', 0
FROM generate_series(0, %s - 1) AS n
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work at all?")
    parser.add_argument("--rounds", type=int, help="how often each contestant is measured")
    parser.add_argument("--url", help="a server where databases may be created")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure")
    options = parser.parse_args()
    sizes = dict(QUICK if options.quick else FULL)
    sizes["rounds"] = options.rounds or sizes["rounds"]
    with _server(options.url, options.folder) as url:
        print(json.dumps(run(url, sizes), indent=2))
        close_pools()


@contextmanager
def _server(url: str | None, folder: Path) -> Iterator[str]:
    if url is not None:
        yield url
        return
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from servers.postgres import PostgresServer

    with tempfile.TemporaryDirectory(dir=folder, prefix=".bench-") as place:
        settings = {"fsync": "on", "full_page_writes": "on", "max_wal_size": "8GB"}
        server = PostgresServer(Path(place), shared_buffers="1GB", **settings)
        server.start()
        try:
            yield server.url
        finally:
            server.stop()


@contextmanager
def _database(url: str) -> Iterator[str]:
    name = f"bench_{time.time_ns()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield make_conninfo(url, dbname=name)
        finally:
            close_pools()
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def run(url: str, sizes: dict[str, int]) -> dict[str, Any]:
    contestants: dict[str, Callable[[str, int], float]] = {"ledger": ledger, "limit": limit}
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(sizes["rounds"]):
        for name, measure in contestants.items():
            print(f"{number + 1}/{sizes['rounds']}: {name}", file=sys.stderr, flush=True)
            with _database(url) as place:
                rates[name].append(sizes["tasks"] / measure(place, sizes["tasks"]))
    ratios = [a / b for a, b in zip(rates["ledger"], rates["limit"], strict=True)]
    with _database(url) as place:
        latencies = claims_beside_finished(place, sizes)
    return {
        "tasks": sizes["tasks"],
        "per_second": {name: _spread(found) for name, found in rates.items()},
        "of_the_limit": _spread(ratios),
        "claim_ms": latencies,
    }


def ledger(url: str, count: int) -> float:
    """Seconds to claim and complete so many light tasks, in batches of the engine's size."""
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


def limit(url: str, count: int) -> float:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(_SCHEMA)
        db.execute(_INSERT, (count,))
        db.execute("VACUUM ANALYZE")
        began_s = time.perf_counter()
        while True:
            now_ms = time.time_ns() // 1_000_000
            rows = db.execute(_CLAIM, {"count": BATCH_MAX, "now_ms": now_ms}).fetchall()
            if not rows:
                break
            ids, fences = [row[0] for row in rows], [row[1] for row in rows]
            values = {"ids": ids, "fences": fences, "results": ["null"] * len(ids)}
            with db.transaction():
                db.execute(_COMPLETE, values | {"now_ms": now_ms})
                db.execute(_UNFINISHED).fetchall()
        took_s = time.perf_counter() - began_s
        found = db.execute("SELECT count(*) FROM events").fetchone()
        require(found == (2 * count,), f"{found} events")
    return took_s


def claims_beside_finished(url: str, sizes: dict[str, int]) -> dict[str, dict[str, float]]:
    """Claims of one task, and of a batch: with nothing finished yet, and with very much."""
    own = PostgresLedger(url)
    made = submit(own, job(plan("cut"), mapped("hear", "cut"), key="pending"))
    (first,) = own.claim("bench", 1, lease_ttl_s=TTL_S)
    own.complete([completion(own, made, first, chunks(sizes["pending"]))])
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("VACUUM ANALYZE")
        found = {"nothing finished": _claims(own, sizes["claims"])}
        old = submit(own, job(plan("cut"), mapped("hear", "cut"), key="finished"))
        (row,) = own.jobs("finished")
        db.execute(_FINISHED, (row.id, sizes["finished"]))
        own.mark(old.key, JobState.DONE)
        db.execute("VACUUM ANALYZE")
    found[f"{sizes['finished']:,} finished"] = _claims(own, sizes["claims"])
    return found


def _claims(own: PostgresLedger, count: int) -> dict[str, float]:
    def timed(capacity: int) -> float:
        began_s = time.perf_counter()
        leases = own.claim("bench", capacity, lease_ttl_s=TTL_S)
        took_s = time.perf_counter() - began_s
        require(len(leases) == capacity, f"{len(leases)} leases")
        return took_s * 1000

    single = sorted(timed(1) for _ in range(count))
    batch = sorted(timed(BATCH_MAX // 8) for _ in range(max(1, count // 10)))
    return {
        "one, median": median(single),
        "one, 99 of 100": single[int(len(single) * 0.99) - 1 if len(single) > 1 else 0],
        f"{BATCH_MAX // 8}, median": median(batch),
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "low": min(values), "high": max(values)}


if __name__ == "__main__":
    main()
