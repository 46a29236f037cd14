"""Submitting a job to a simulated ledger, as the same command does again and again."""

from __future__ import annotations

from intermission.engine.planning import expand
from intermission.maintenance.rebuild import remember_job
from intermission.maintenance.verify import verify
from intermission.model import Job, JobState, TaskState
from intermission.ports.ledger import every_task
from intermission.telemetry import reached
from intermission.testing.simulator.process import Process


def submit(process: Process, job: Job, *, thorough: bool) -> None:
    """Put a job into the ledger, or look at its receipts and start again what had stopped."""
    ledger, store = process.ledger, process.store
    remember_job(store, job)
    if not ledger.submit(job, expand(job, {})):
        verify(
            ledger,
            store,
            job,
            process.host.folder / "scratch",
            process.world.clock,
            outputs=process.outputs,
            thorough=thorough,
        )
        _retry_stopped(process, job)
    reached("after-submit")


def _retry_stopped(process: Process, job: Job) -> None:
    ledger = process.ledger
    for row in ledger.jobs(job.key):
        if row.state in (JobState.FAILED, JobState.CANCELLED):
            ledger.retry(job.key)
        elif row.total(TaskState.FAILED):
            failed = every_task(ledger, job.key, states=[TaskState.FAILED])
            ids = [task.id for task in failed if not job.step(task.step).skippable]
            if ids:
                ledger.retry(job.key, ids)
