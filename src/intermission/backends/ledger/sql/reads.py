"""The reading half of the ledger."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection

from intermission.backends.ledger.sql.database import Database, Row
from intermission.backends.ledger.sql.job_specs import JobSpecs
from intermission.model import (
    Event,
    FileRef,
    Job,
    JobRow,
    JobState,
    Limit,
    Output,
    TaskOutput,
    TaskRow,
    TaskState,
)
from intermission.ports.ledger import PAGE, DeferredTask, Refusal

ID_MAX = 2**63 - 1
_TASK_COLUMNS = len(TaskRow.__match_args__)


class Reads:
    """Queries, each of one moment, and not of the same one."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._specs = JobSpecs(db)

    def close(self) -> None:
        self._db.close()

    def job(self, key: str) -> Job | None:
        if (kept := self._specs.kept(key)) is not None:
            return kept
        id = self._specs.id_of(key)
        return None if id is None else self._specs.job(id)

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
        rows = self._db.job_rows(
            name,
            set(states),
            first=key_prefix,
            last=key_prefix + chr(sys.maxunicode),
            pipeline=pipeline,
            source=source,
            before=ID_MAX if before is None else before,
            limit=ID_MAX if limit is None else limit,
        )
        jobs = self._specs.jobs(row[:2] for row in rows)
        found: list[JobRow] = []
        for id, _, state, created_ms, updated_ms, reason, counted in rows[:limit]:
            if id not in jobs:
                continue  # it was deleted this instant
            counts: dict[str, dict[TaskState, int]] = {}
            for step, task_state, n in json.loads(counted or "[]"):
                counts.setdefault(jobs[id].steps[step].name, {})[TaskState(task_state)] = n
            times = created_ms, updated_ms
            found.append(JobRow(id, jobs[id], JobState(state), *times, reason, counts))
        return found

    def tasks(
        self,
        job_key: str,
        *,
        states: Collection[TaskState] = (),
        step: str | None = None,
        after: int = 0,
        limit: int = PAGE,
    ) -> list[TaskRow]:
        id = self._specs.id_of(job_key)
        if id is None:
            return []
        no = None if step is None else self._specs.numbers(id)[step]
        rows = self._db.task_rows(id, states, no, after, limit)
        return [self._task_row(id, row) for row in rows]

    def receipts(
        self, job_key: str, *, after: int = 0, limit: int = PAGE
    ) -> list[tuple[TaskRow, Output]]:
        id = self._specs.id_of(job_key)
        if id is None:
            return []
        return [
            (self._task_row(id, row), output)
            for row in self._db.rows("receipts", job=id, after=after, limit=limit)
            if (output := _output(TaskState.DONE, *row[_TASK_COLUMNS:])) is not None
        ]

    def outputs(
        self, job_key: str, step: str, *, after: int = -1, limit: int = PAGE
    ) -> list[TaskOutput]:
        rows = self._db.rows("outputs", job=job_key, step=step, after=after, limit=limit)
        return [
            TaskOutput(index, TaskState(state), _output(state, *rest))
            for index, state, *rest in rows
        ]

    def deferred(self, token: str) -> DeferredTask | None:
        for row in self._db.rows("deferred", token=token):
            job_id, fence = row[_TASK_COLUMNS:]
            return DeferredTask(self._specs.job(job_id).key, fence, self._task_row(job_id, row))
        return None

    def events(self, after: int = 0, *, job: str | None = None, limit: int = 1000) -> list[Event]:
        id = None if job is None else self._specs.id_of(job)
        if job is not None and id is None:
            return []
        name = "events" if job is None else "events_of_job"
        ((settled,),) = self._db.rows("events_settled")  # first: what it names can be read then
        if settled <= after:
            return []
        rows = self._db.rows(name, job=id, after=after, limit=limit, settled=settled)
        return [Event(*row) for row in rows]

    def workers(self) -> list[str]:
        return [worker for (worker,) in self._db.rows("workers")]

    def refusals(self) -> list[Refusal]:
        return [Refusal(*row) for row in self._db.rows("refusals")]

    def limits(self) -> list[Limit]:
        rows = self._db.rows("limits")
        return [Limit(name, running, rate, bool(paused)) for name, running, rate, paused in rows]

    def held_under(self, limit: str) -> int:
        kind, _, what = limit.partition(":")
        pipeline = ""
        if kind == "step":
            pipeline, _, what = what.rpartition("/")
        ((held,),) = self._db.rows(f"held_under_{kind}", what=what, pipeline=pipeline)
        return held

    def _task_row(self, job_id: int, row: Row) -> TaskRow:
        """Its columns are the fields in their order, and may be followed by others."""
        known = dict(zip(TaskRow.__match_args__, row, strict=False))
        known["step"] = self._specs.job(job_id).steps[known["step"]].name
        known["state"] = TaskState(known["state"])
        known["adopted"] = bool(known["adopted"])
        return TaskRow(**known)


def _output(state: str, task_key: str, result: str, files: str | None) -> Output | None:
    if state != TaskState.DONE:
        return None
    refs = () if files is None else tuple(FileRef(*ref) for ref in json.loads(files))
    return Output(task_key, result, refs)
