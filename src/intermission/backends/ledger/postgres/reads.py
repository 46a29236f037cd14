"""The reading half of the PostgreSQL ledger."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from typing import Any

from intermission.backends.ledger.postgres.transactions import Row, Transactions
from intermission.model import (
    ALONE_AFTER,
    Event,
    FileRef,
    Job,
    JobRow,
    JobState,
    Lease,
    Output,
    TaskOutput,
    TaskRow,
    TaskState,
)
from intermission.ports.ledger import PAGE, DeferredTask, Refusal

JOBS_KEPT = 10_000
"""Of so many jobs the specs are kept, so that they need not be read and parsed again."""
ID_MAX = 2**63 - 1
_TASK_COLUMNS = 20


class Reads(Transactions):
    """Queries. Jobs never change once submitted, but for their limits, so they are kept."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._jobs: dict[int, tuple[int, Job]] = {}
        self._swept = 0
        """The job that the last sweep ended at."""

    def jobs(
        self,
        key_prefix: str = "",
        *,
        states: Collection[JobState] = (),
        pipeline: str | None = None,
        source: str | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> list[JobRow]:
        if key_prefix:
            name = "jobs_by_key"
        elif source is not None:
            name = "jobs_of_source"
        elif pipeline is not None:
            name, states = "jobs_of_pipeline", states or tuple(JobState)
        else:
            name = "jobs_in_states" if states else "newest_jobs"
        rows = self._rows(
            name,
            first=key_prefix,
            last=key_prefix + chr(sys.maxunicode),
            states=list(set(states)) or None,
            pipeline=pipeline,
            source=source,
            before=ID_MAX if before is None else before,
            limit=limit,
        )
        jobs = self._read(rows)
        # One that was forgotten this instant is in no list.
        return [self._job_row(jobs[row[0]], *row) for row in rows if row[0] in jobs]

    def _read(self, rows: list[Row]) -> dict[int, Job]:
        """The jobs of these rows by id; those not known in their revision are read at once."""
        found: dict[int, Job] = {}
        unknown: list[int] = []
        for id, revision, *_ in rows:
            known = self._jobs.get(id)
            if known is None or known[0] < revision:
                unknown.append(id)
            else:
                found[id] = known[1]
        for id, revision, spec in self._rows("job_specs", jobs=unknown) if unknown else ():
            found[id] = self._keep(id, revision, spec)
        return found

    def _job_row(
        self,
        job: Job,
        id: int,
        _: int,
        state: str,
        created_ms: int,
        updated_ms: int,
        reason: str | None,
        counted: list[tuple[int, str, int]] | None,
    ) -> JobRow:
        counts: dict[str, dict[TaskState, int]] = {}
        for step, task_state, n in counted or ():
            counts.setdefault(job.steps[step].name, {})[TaskState(task_state)] = n
        return JobRow(id, job, JobState(state), created_ms, updated_ms, reason, counts)

    def tasks(
        self,
        job_key: str,
        *,
        states: Collection[TaskState] = (),
        step: str | None = None,
        after: int = 0,
        limit: int = PAGE,
    ) -> list[TaskRow]:
        id = self._id(job_key)
        if id is None:
            return []
        name = "tasks_in_states" if states and TaskState.DONE not in states else "tasks"
        rows = self._rows(
            name,
            job=id,
            step=None if step is None else self._numbers(id)[step],
            states=list(states) or None,
            after=after,
            limit=limit,
        )
        return [self._task_row(id, row) for row in rows]

    def receipts(
        self, job_key: str, *, after: int = 0, limit: int = PAGE
    ) -> list[tuple[TaskRow, Output]]:
        id = self._id(job_key)
        if id is None:
            return []
        return [
            (self._task_row(id, row), output)
            for row in self._rows("receipts", job=id, after=after, limit=limit)
            if (output := _output("done", *row[_TASK_COLUMNS:])) is not None
        ]

    def _task_row(self, job_id: int, row: Row) -> TaskRow:
        id, step, index, key, chunk, state, attempts, fence, worker = row[:9]
        progress, error, message, adopted, started_ms, ended_ms = row[9:15]
        code, lost, refusals, ready_s, wait_s = row[15:_TASK_COLUMNS]
        ready_ms = None
        if state == TaskState.RETRYING and wait_s > 0:
            ready_ms = int(ready_s * 1000)
            if self._clock is not None:
                ready_ms = self._clock.now_ms() + int(wait_s * 1000)
        return TaskRow(
            id=id,
            step=self._job(job_id).steps[step].name,
            index=index,
            key=key,
            chunk=chunk,
            state=TaskState(state),
            attempts=attempts,
            fence=fence,
            worker=worker,
            progress=progress,
            error=error,
            message=message,
            adopted=adopted,
            started_ms=started_ms,
            ended_ms=ended_ms,
            ready_ms=ready_ms,
            code=code,
            lost=lost,
            refusals=refusals,
        )

    def outputs(
        self, job_key: str, step: str, *, after: int = -1, limit: int = PAGE
    ) -> list[TaskOutput]:
        return [
            TaskOutput(index, TaskState(state), _output(state, *rest))
            for index, state, *rest in self._rows(
                "outputs", job=job_key, step=step, after=after, limit=limit
            )
        ]

    def deferred(self, token: str) -> DeferredTask | None:
        for row in self._rows("deferred", token=token):
            job_id, fence = row[_TASK_COLUMNS:]
            return DeferredTask(self._job(job_id).key, fence, self._task_row(job_id, row))
        return None

    def events(self, after: int = 0, *, job: str | None = None, limit: int = 1000) -> list[Event]:
        id = None if job is None else self._id(job)
        if job is not None and id is None:
            return []
        ((settled,),) = self._rows("events_settled")
        if settled <= after:
            return []
        name = "events" if job is None else "events_of_job"
        rows = self._rows(name, after=after, job=id, settled=settled, limit=limit)
        return [Event(*row) for row in rows]

    def workers(self) -> list[str]:
        return [worker for (worker,) in self._rows("workers")]

    def refusals(self) -> list[Refusal]:
        return [Refusal(*row) for row in self._rows("refusals")]

    def _id(self, job_key: str) -> int | None:
        rows = self._rows("job_id", key=job_key)
        return rows[0][0] if rows else None

    def _job(self, id: int, revision: int = 0) -> Job:
        """A job's spec, as it was when last read unless a newer revision is asked for."""
        known = self._jobs.get(id)
        if known is None or known[0] < revision:
            ((revision, spec),) = self._rows("job_spec", job=id)
            return self._keep(id, revision, spec)
        return known[1]

    def _keep(self, id: int, revision: int, spec: str) -> Job:
        if len(self._jobs) >= JOBS_KEPT:
            self._jobs.clear()
        job = Job.from_json(spec)
        self._jobs[id] = revision, job
        return job

    def _numbers(self, id: int) -> dict[str, int]:
        return {spec.name: no for no, spec in enumerate(self._job(id).steps)}

    def _leases(self, rows: list[Row]) -> list[Lease]:
        """Leases of (job, task, fence, attempt, step, index, key, chunk, lost)."""
        leases: list[Lease] = []
        for job_id, id, fence, attempt, step, index, key, chunk, lost in rows:
            job = self._job(job_id)
            place = job.key, job.steps[step].name, index
            leases.append(Lease(id, fence, attempt, *place, key, chunk, lost >= ALONE_AFTER))
        return leases


def _output(state: str, task_key: str, result: str, files: str | None) -> Output | None:
    if state != "done":
        return None
    refs = () if files is None else tuple(FileRef(*ref) for ref in json.loads(files))
    return Output(task_key, result, refs)
