"""Outputs of jobs that failed or were cancelled while another version is in use.

They lie beside it, and nobody is led to them. Garbage collection takes them after a grace. Such a
job may still be tried again: then its finished tasks, which nobody would run, are sent back to
work. They find their receipts and put their files in place, before anything leads there.
"""

from __future__ import annotations

from intermission.model import Job, JobState, TaskState
from intermission.ports.ledger import Ledger, every_task
from intermission.ports.store import Store, read_note, write_note

BEING_COLLECTED, COLLECTED, BROUGHT_BACK = "being collected", "collected", "brought back"


def given_up_ms(ledger: Ledger | None, pipeline: str, job_key: str) -> int | None:
    """When a job of this pipeline failed or was cancelled; None if it did not, or is not known.

    One that lacks nothing but its front is as good as done: it is not counted.
    """
    for row in [] if ledger is None else ledger.jobs(job_key):
        if row.job.key != job_key or row.job.pipeline != pipeline:
            continue
        if row.state not in (JobState.FAILED, JobState.CANCELLED):
            continue
        behind = [spec.name for spec in row.job.steps if not spec.entrypoints]
        if any(row.counts.get(name, {}).keys() - {TaskState.DONE} for name in behind):
            return row.updated_ms
    return None


def preview_key(job_key: str) -> str:
    """Where it is written down from how many results a job's previews are made."""
    return f"published/.previews/{job_key}.json"


def mark_collected(store: Store, job_key: str, how: str) -> None:
    """Write down that outputs of a job are not where they were, before the first of them goes."""
    write_note(store, _key(job_key), {"outputs": how})


def is_collected(store: Store, job_key: str) -> bool:
    """Whether there is nothing left of a job's outputs."""
    return read_note(store, _key(job_key)).get("outputs") == COLLECTED


def bring_back(ledger: Ledger, store: Store, job: Job) -> int:
    """Have finished tasks put their files in place again, if they were collected. How many."""
    if not any(spec.entrypoints for spec in job.steps):
        return 0
    if read_note(store, _key(job.key)).get("outputs") not in (COLLECTED, BEING_COLLECTED):
        return 0
    named = {spec.name for spec in job.steps if spec.publish is not None and not spec.entrypoints}
    done = [
        row.id for row in every_task(ledger, job.key, states=[TaskState.DONE]) if row.step in named
    ]
    changed = ledger.invalidate(done, reason="its outputs were collected")
    if store.stat(preview_key(job.key)) is not None:
        write_note(store, preview_key(job.key), {"results": 0})
    mark_collected(store, job.key, BROUGHT_BACK)
    return len(changed)


def _key(job_key: str) -> str:
    return f"published/.collected/{job_key}.json"
