"""The SQLite ledger without the engine: its own plan, claims and completions, in one process.

What is between this and `run` is what processes and messages cost; what is between this and
the limit is what the ledger does more than a hand-written script.
"""

from __future__ import annotations

import time
from pathlib import Path

from engine import ref
from judging import require

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.engine.backlog import BATCH_MAX
from intermission.engine.planning import expand, make_job
from intermission.model import Completion, JobState, Source
from intermission.pipeline import load

SETTINGS = f"SqliteLedger, one process; WAL, synchronous=FULL, batches of {BATCH_MAX}"
TTL_S = 60.0


def light(count: int, folder: Path) -> float:
    job = make_job(load(ref("light")), Source("file:///none", "0"), {"count": count})
    ledger = SqliteLedger(folder / "ledger.sqlite")
    began_s = time.perf_counter()
    ledger.submit(job, expand(job, {}))
    (plan,) = ledger.claim("bench", 1, lease_ttl_s=TTL_S)
    chunks = {"items": [f'{{"n":{n}}}' for n in range(count)]}
    tasks = expand(job, chunks, "items")
    done = Completion(plan.task_id, plan.fence, "[]", tasks=list(tasks), plans=frozenset(chunks))
    ledger.complete([done])
    while leases := ledger.claim("bench", BATCH_MAX, lease_ttl_s=TTL_S):
        ledger.complete([Completion(lease.task_id, lease.fence, "null") for lease in leases])
    took_s = time.perf_counter() - began_s
    (row,) = ledger.jobs()
    require(row.state is JobState.DONE and row.total() == count + 1, f"the job is {row.state}")
    ledger.close()
    return took_s
