"""A ledger from receipts alone: what is finished is in the store, not in the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from intermission.engine import completion
from intermission.engine.inputs import input_digests, inputs_of, skipped_inputs
from intermission.engine.planning import expand, with_skipped
from intermission.engine.receipt import adopt
from intermission.errors import AlreadyExists, InputUnfinished, StoreError
from intermission.model import CLAIMABLE, Completion, Job, Lease, TaskRow, TaskState, canonical
from intermission.ports.ledger import Ledger
from intermission.ports.store import Store

_BATCH = 256
SHARED_KEY = "shared.json"
"""There once a shared ledger has had a job that was remembered without it."""


def remember_job(store: Store, job: Job, *, in_shared_ledger: bool = False) -> None:
    """Keep what a job is beside its receipts, so that a ledger can be made from the store.

    And whether a shared ledger has it: then that alone knows who works on it.
    """
    key = f"jobs/{job.key}.json"
    if store.stat(key) is None:
        record = asdict(job) | {"in_shared_ledger": in_shared_ledger}
        with suppress(AlreadyExists):
            store.create(key, canonical(record).encode())
            return
    if not in_shared_ledger or _is_in_shared_ledger(store, key):
        return
    if store.stat(SHARED_KEY) is None:
        store.replace(SHARED_KEY, b"{}")


def needs_shared_ledger(store: Store) -> bool:
    """Whether a shared ledger has, or had, any job of this workspace."""
    if store.stat(SHARED_KEY) is not None:
        return True
    return any(_is_in_shared_ledger(store, stat.key) for stat in store.list("jobs/"))


def _is_in_shared_ledger(store: Store, key: str) -> bool:
    """What a record says, whoever wrote it."""
    try:
        return bool(json.loads(store.read(key))["in_shared_ledger"])
    except (ValueError, TypeError, KeyError):
        return False


def remembered_jobs(store: Store) -> Iterator[Job]:
    return (remembered_job(store, stat.key) for stat in store.list("jobs/"))


def remembered_job(store: Store, key: str) -> Job:
    """The job whose record this is. Raises `NotFound`, and `StoreError` for one that is none."""
    try:
        fields = json.loads(store.read(key))
        fields.pop("in_shared_ledger")
        return Job.from_json(canonical(fields))
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise StoreError(
            f"expected a job under {key} in {store.uri}, found something else.",
            remedy="Move it away and rebuild again; the next run of that job writes it anew.",
        ) from e


class Rebuilt(NamedTuple):
    """What a rebuild knows of a job now."""

    adopted: int
    """Tasks that are done since, because their receipts stand."""
    done: int
    total: int


def rebuild(ledger: Ledger, store: Store, scratch: Path) -> dict[str, Rebuilt]:
    """Submit every remembered job and adopt every receipt; nothing is run. By the job's key."""
    found: dict[str, Rebuilt] = {}
    for job in remembered_jobs(store):
        ledger.submit(job, expand(job, {}))
        adopted = adopt_all(ledger, store, job, scratch)
        (row,) = ledger.jobs(job.key)
        found[job.key] = Rebuilt(adopted, row.total(TaskState.DONE), row.total())
    return found


def adopt_all(ledger: Ledger, store: Store, job: Job, scratch: Path) -> int:
    """Record every claimable task of a job as done that has a sound receipt. How many.

    No lease is needed, so no limit is in the way. A task that somebody holds is theirs to end.
    """
    adopted = 0
    tried: set[tuple[int, int]] = set()
    more = True
    while more:  # what was adopted may have made others claimable, before and behind
        more, after = False, 0
        while page := ledger.tasks(job.key, states=CLAIMABLE, after=after, limit=_BATCH):
            after = page[-1].id
            waiting = [row for row in page if (row.id, row.fence) not in tried]
            tried.update((row.id, row.fence) for row in waiting)
            done = [one for row in waiting if (one := _finished(ledger, store, job, row, scratch))]
            adopted += sum(completion.complete(ledger, store, job, done, scratch))
            more |= bool(done)
    return adopted


def _finished(
    ledger: Ledger, store: Store, job: Job, row: TaskRow, scratch: Path
) -> tuple[Lease, Completion] | None:
    """A task's end, if its receipt stands and is sound."""
    if not job.step(row.step).durable:
        return None
    lease = Lease(
        row.id, row.fence, row.attempts + 1, job.key, row.step, row.index, row.key, row.chunk
    )
    try:
        inputs = inputs_of(ledger, job, lease)
        key = with_skipped(row.key, skipped_inputs(job, row.step, inputs))
        digests = input_digests(job, row.step, inputs)
    except InputUnfinished:  # it was lost this instant
        return None
    receipt = adopt(store, row.step, key, scratch, digests)
    if receipt is None:
        return None
    ids = row.id, row.fence
    return lease, Completion(*ids, receipt.result, receipt, True, by_receipt=True, key=row.key)
