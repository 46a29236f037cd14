"""The reading half of the SQLite ledger."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from intermission.backends.ledger.sqlite.connection import connect, translated
from intermission.backends.ledger.sqlite.queries import SQL
from intermission.model import (
    LOST_MAX,
    Event,
    FileRef,
    Job,
    JobRow,
    JobState,
    Output,
    TaskOutput,
    TaskRow,
    TaskState,
)
from intermission.ports.clock import Clock, SystemClock
from intermission.ports.ledger import PAGE, DeferredTask, Refusal

_TASK = (
    "SELECT t.id, t.step, t.idx, t.key, t.chunk, t.state, t.attempts, t.fence, t.worker, "
    "t.progress, t.error, t.message, t.adopted, t.started_ms, t.ended_ms, t.ready_s, t.code, "
    "t.lost, t.refusals "
    "FROM tasks AS t "
)

JOBS_KEPT = 10_000
"""Of so many jobs the specs are kept, so that they need not be read and parsed again."""
ID_MAX = 2**63 - 1


class Reads:
    """Queries over one connection. Jobs never change once submitted, so they are kept."""

    def __init__(self, path: Path, *, clock: Clock | None = None, lost_max: int = LOST_MAX) -> None:
        self.path = path
        self._lost_max = lost_max
        self._swept = 0
        """The job that the last sweep ended at."""
        self._clock: Clock = clock or SystemClock()
        # Typed loosely: the driver's stubs make every column a union of all SQL types.
        self._db: Any = connect(path)
        self._jobs: dict[int, tuple[int, Job]] = {}

    def close(self) -> None:
        self._db.close()

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
        values: dict[str, Any] = {
            "first": key_prefix,
            "last": key_prefix + chr(sys.maxunicode),
            "pipeline": pipeline,
            "source": source,
            "before": ID_MAX if before is None else before,
            "limit": -1 if limit is None else limit,
        }
        if key_prefix:
            name = "jobs_by_key"
        elif source is not None:
            name = "jobs_of_source"
        elif pipeline is not None:
            name, states = "jobs_of_pipeline", states or tuple(JobState)
        else:
            name = "jobs_in_state" if states else "newest_jobs"
        with translated(self.path), self._db:  # one moment's rows, specs and counts
            # A walk along an index for each state, since one along the index of all is in the
            # order of the states.
            rows = [
                row
                for state in set(states) or (None,)
                for row in self._db.execute(SQL[name], values | {"state": state})
            ]
            rows.sort(reverse=True)  # by id, which no two have
            return [self._job_row(*row) for row in rows[:limit]]

    def _job_row(
        self,
        id: int,
        revision: int,
        state: str,
        created_ms: int,
        updated_ms: int,
        reason: str | None,
    ) -> JobRow:
        job = self._job(id, revision)
        counts: dict[str, dict[TaskState, int]] = {}
        for step, task_state, n in self._db.execute(
            "SELECT step, state, n FROM counts WHERE job_id = ? AND n > 0 ORDER BY step", (id,)
        ):
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
        # Few are in any state but `done`: they are found by the index of their state, and sorted.
        by_state = bool(states) and TaskState.DONE not in states
        index, order = ("", "+t.id") if by_state else ("INDEXED BY tasks_of_job", "t.id")
        where, values = f"WHERE t.job_id = ? AND {order} > ?", [id, after]
        if step is not None:
            where += " AND t.step = ?" if by_state else " AND +t.step = ?"
            values.append(self._numbers(id)[step])
        if states:
            # Spelt as the partial indices spell it, or they would not be used.
            terms = (f"t.state = '{state}'" for state in TaskState if state in states)
            where += f" AND ({' OR '.join(terms)})"
        with translated(self.path):
            sql = f"{_TASK} {index} {where} ORDER BY {order} LIMIT ?"
            return [self._task_row(id, row) for row in self._db.execute(sql, (*values, limit))]

    def _task_row(self, job_id: int, row: tuple[Any, ...]) -> TaskRow:
        id, step, index, key, chunk, state, attempts, fence, worker = row[:9]
        progress, error, message, adopted, started_ms, ended_ms, ready_s = row[9:16]
        code, lost, refusals = row[16:]
        wait_ms = int((ready_s - self._clock.monotonic_s()) * 1000)
        waiting = state == TaskState.RETRYING and wait_ms > 0
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
            adopted=bool(adopted),
            started_ms=started_ms,
            ended_ms=ended_ms,
            ready_ms=self._clock.now_ms() + wait_ms if waiting else None,
            code=code,
            lost=lost,
            refusals=refusals,
        )

    def receipts(
        self, job_key: str, *, after: int = 0, limit: int = PAGE
    ) -> list[tuple[TaskRow, Output]]:
        id = self._id(job_key)
        if id is None:
            return []
        select = _TASK.replace("FROM", ", coalesce(t.receipt, t.key), t.result, t.files FROM")
        sql = (
            f"{select} INDEXED BY tasks_with_files WHERE t.job_id = ? AND t.id > ? "
            "AND t.files IS NOT NULL AND t.state = 'done' ORDER BY t.id LIMIT ?"
        )
        with translated(self.path):
            return [
                (self._task_row(id, row[:19]), output)
                for row in self._db.execute(sql, (id, after, limit))
                if (output := _output("done", *row[19:])) is not None
            ]

    def outputs(
        self, job_key: str, step: str, *, after: int = -1, limit: int = PAGE
    ) -> list[TaskOutput]:
        values = {"job": job_key, "step": step, "after": after, "limit": limit}
        with translated(self.path):
            rows = self._db.execute(SQL["outputs"], values)
            return [
                TaskOutput(index, TaskState(state), _output(state, *rest))
                for index, state, *rest in rows
            ]

    def deferred(self, token: str) -> DeferredTask | None:
        with translated(self.path):
            row = self._db.execute(
                f"{_TASK.replace('FROM', ', t.job_id, d.fence FROM')} "
                "JOIN deferrals AS d ON d.task_id = t.id WHERE d.token = ? "
                "ORDER BY (t.state = 'running' AND t.fence = d.fence) DESC, t.id DESC LIMIT 1",
                (token,),
            ).fetchone()
            if row is None:
                return None
            job_id, fence = row[19:]
            return DeferredTask(self._job(job_id).key, fence, self._task_row(job_id, row[:19]))

    def events(self, after: int = 0, *, job: str | None = None, limit: int = 1000) -> list[Event]:
        id = None if job is None else self._id(job)
        if job is not None and id is None:
            return []
        name = "events" if job is None else "events_of_job"
        with translated(self.path):
            values = {"after": after, "job": id, "limit": limit}
            return [Event(*row) for row in self._db.execute(SQL[name], values)]

    def workers(self) -> list[str]:
        with translated(self.path):
            rows = self._db.execute(
                "SELECT DISTINCT worker FROM tasks WHERE worker IS NOT NULL "
                "AND (state = 'leased' OR state = 'running') ORDER BY worker"
            )
            return [worker for (worker,) in rows]

    def refusals(self) -> list[Refusal]:
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        with translated(self.path):
            return [
                Refusal(*row, until_ms=now_ms + int((until_s - now_s) * 1000))
                for *row, until_s in self._db.execute(SQL["refusals"], {"now_s": now_s})
            ]

    def _id(self, job_key: str) -> int | None:
        with translated(self.path):
            row = self._db.execute("SELECT id FROM jobs WHERE key = ?", (job_key,)).fetchone()
        return None if row is None else row[0]

    def _job(self, id: int, revision: int = 0) -> Job:
        """A job's spec, as it was when last read unless a newer revision is asked for."""
        known = self._jobs.get(id)
        if known is None or known[0] < revision:
            row = self._db.execute("SELECT revision, spec FROM jobs WHERE id = ?", (id,)).fetchone()
            if len(self._jobs) >= JOBS_KEPT:
                self._jobs.clear()
            known = self._jobs[id] = (row[0], Job.from_json(row[1]))
        return known[1]

    def _numbers(self, id: int) -> dict[str, int]:
        return {spec.name: no for no, spec in enumerate(self._job(id).steps)}


def _output(state: str, task_key: str, result: str, files: str | None) -> Output | None:
    if state != "done":
        return None
    refs = () if files is None else tuple(FileRef(*ref) for ref in json.loads(files))
    return Output(task_key, result, refs)
