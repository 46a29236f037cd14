"""A ledger from receipts alone: what is finished is in the store, not in the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from intermission.engine import completion
from intermission.engine.planning import expand, input_digests, with_skipped
from intermission.engine.receipt import adopt
from intermission.engine.run_task import skipped_inputs
from intermission.errors import AlreadyExists, StoreError
from intermission.model import Completion, Job, Lease
from intermission.ports.ledger import Ledger
from intermission.ports.store import Store

_BATCH = 256
_TTL_S = 3600.0


def remember_job(store: Store, job: Job) -> None:
    """Keep what a job is beside its receipts, so that a ledger can be made from the store."""
    key = f"jobs/{job.key}.json"
    if store.stat(key) is None:
        try:
            store.create(key, job.to_json().encode())
        except AlreadyExists:
            return


def remembered_jobs(store: Store) -> Iterator[Job]:
    for stat in store.list("jobs/"):
        try:
            yield Job.from_json(store.read(stat.key).decode())
        except (ValueError, TypeError, KeyError) as e:
            raise StoreError(
                f"expected a job under {stat.key} in {store.uri}, found something else.",
                remedy="Move it away and rebuild again; the next run of that job writes it anew.",
            ) from e


def rebuild(ledger: Ledger, store: Store, scratch: Path, worker: str) -> dict[str, tuple[int, int]]:
    """Submit every remembered job and adopt every receipt; nothing is run.

    By job: how many tasks were adopted, and how many are known.
    """
    found: dict[str, tuple[int, int]] = {}
    for job in remembered_jobs(store):
        ledger.submit(job, expand(job, {}))
        adopted = adopt_all(ledger, store, job, scratch, worker)
        (row,) = ledger.jobs(job.key)
        found[job.key] = (adopted, row.total())
    return found


def adopt_all(ledger: Ledger, store: Store, job: Job, scratch: Path, worker: str) -> int:
    """Complete every claimable task of a job that has a sound receipt. How many.

    `worker` must be alive in the workspace, so that its leases end with it.
    """
    unfinished: list[tuple[int, int]] = []
    adopted = 0
    offers = {spec.needs for spec in job.steps if spec.needs is not None}
    while leases := ledger.claim(worker, _BATCH, lease_ttl_s=_TTL_S, offers=offers, jobs=[job.key]):
        done: list[tuple[Lease, Completion]] = []
        for lease in leases:
            durable = job.step(lease.step).durable
            key = with_skipped(lease.key, skipped_inputs(lease))
            receipt = (
                adopt(store, lease.step, key, scratch, input_digests(job, lease))
                if durable
                else None
            )
            if receipt is None:
                unfinished.append((lease.task_id, lease.fence))
            else:
                ids = lease.task_id, lease.fence
                finished = Completion(*ids, receipt.result, receipt, True, key=lease.key)
                done.append((lease, finished))
        completion.complete(ledger, store, job, done, scratch)
        adopted += len(done)
    ledger.release(unfinished, reason="no receipt yet")
    return adopted
