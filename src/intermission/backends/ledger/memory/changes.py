"""The one way a task of a memory ledger changes, and what a change sets off in its job.

Called inside a transaction. Every change is legal by `model.TRANSITIONS` and leaves an event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import MISSING, fields, replace
from typing import Any

from intermission.backends.ledger.memory.reads import Reads
from intermission.backends.ledger.memory.tables import LIVE, JobEntry, Row
from intermission.errors import LedgerError
from intermission.model import (
    FINISHED,
    HELD,
    JOB_TRANSITIONS,
    TRANSITIONS,
    JobState,
    Task,
    TaskState,
)

STOPPED = frozenset({TaskState.FAILED, TaskState.CANCELLED})
_LATE = HELD | {TaskState.ABANDONED}
"""Where a holder of the current fence is still listened to."""
_BLANK = {field.name: field.default for field in fields(Row) if field.default is not MISSING}
del _BLANK["job_id"], _BLANK["since_ms"]


class Changes(Reads):
    """What the operations of the ledger are made of."""

    def _current(self, task_id: int, fence: int, key: str | None = None) -> Row | None:
        """The task, if the holder of this fence may still decide about it."""
        row = self._held_under(task_id, fence, key)
        return row if row is not None and row.state in _LATE else None

    def _held_under(self, task_id: int, fence: int, key: str | None) -> Row | None:
        row = self._tables.rows.get(task_id)
        if row is None or row.fence != fence or key not in (None, row.key):
            return None
        return row

    def _told(self, task_id: int, fence: int, key: str | None) -> TaskState | None:
        """The state of a task whose last holder had this fence: what a repeat is answered."""
        row = self._held_under(task_id, fence, key)
        return None if row is None else row.state

    def _move(self, row: Row, state: TaskState, **changes: Any) -> Row:
        """The one way a task changes: legal by the table, with an event for a new state."""
        since_ms = row.since_ms if state is row.state else self._clock.now_ms()
        after = replace(row, state=state, since_ms=since_ms, **changes)
        self._tables.put(after)
        if state is not row.state:
            if state not in TRANSITIONS[row.state]:
                raise LedgerError(f"task {row.name} cannot go from {row.state} to {state}.")
            now_ms = self._clock.now_ms()
            self._tables.log(now_ms, row.job_id, row.state, state, row=after, message=after.message)
        return after

    def _reset(self, row: Row, state: TaskState, **changes: Any) -> Row:
        """Take a task back to its beginning under a new fence, so that no holder is believed."""
        blank = _BLANK | {"attempts": 0, "fence": row.fence + 1}
        return self._move(row, state, **blank | changes)

    def _set_job(self, entry: JobEntry, state: JobState, reason: str | None = None) -> None:
        if state is entry.state:
            return
        if state not in JOB_TRANSITIONS[entry.state]:
            raise LedgerError(f"job {entry.job.key} cannot go from {entry.state} to {state}.")
        now_ms = self._clock.now_ms()
        self._tables.put_job(replace(entry, state=state, updated_ms=now_ms, reason=reason))
        self._tables.log(now_ms, entry.id, entry.state, state, message=reason)

    def _after(self, ended: Iterable[Row]) -> None:
        """Let start what waited for these tasks; end the jobs that have nothing left to do."""
        waiting: dict[tuple[int, str, int | None], None] = {}
        jobs: set[int] = set()
        for row in ended:
            jobs.add(row.job_id)
            for step, index in self._graph(row.job_id).waiting_for(row):
                waiting[row.job_id, step, index] = None
        for job_id, step, index in waiting:
            for row in self._graph(job_id).ripe(step, index):
                self._move(row, TaskState.PENDING)
        for job_id in jobs:
            self._settle(job_id)

    def _sweep(self, job_id: int) -> None:
        """Look at every task of a job again that waits: it may start, has to wait, or never will.

        A task can come to wait for an input that has stopped already, which will not tell it;
        and one whose bytes were lost may have been made of inputs that stopped since.
        """
        graph = self._graph(job_id)
        waiting = TaskState.BLOCKED, TaskState.CORRUPT
        stopped = bool(self._tables.of_job(job_id, *STOPPED))
        for step in graph.specs:
            for row in self._tables.of_step(job_id, step, *waiting) if stopped else ():
                culprit = graph.culprit(row)
                if culprit is not None:
                    self._cancel(row, _blame(culprit))
            for row in graph.ripe(step):
                self._move(row, TaskState.PENDING)

    def _settle(self, job_id: int) -> None:
        entry = self._tables.jobs[job_id]
        if entry.state in LIVE and (outcome := self._graph(job_id).outcome()) is not None:
            self._set_job(entry, outcome)

    def _changed_since(self, before: int) -> int:
        """How many tasks an operation moved, from the events it left."""
        return len({e.task_id for e in self._tables.events[before:] if e.task_id is not None})

    def _insert(self, job_id: int, tasks: Iterable[Task]) -> set[int]:
        """Add tasks, or start them afresh under another key; the ids of these."""
        graph = self._graph(job_id)
        added: set[int] = set()
        changed: set[int] = set()
        for task in tasks:
            if task.step not in graph.specs:
                raise LedgerError(f"the job has no step {task.step!r} to add a task to.")
            old = graph.task(task.step, task.index)
            if old is None:
                id = self._tables.new_id()
                row = Row(
                    id, task.step, task.index, task.key, task.chunk, TaskState.BLOCKED, 0, 0,
                    job_id=job_id, since_ms=self._clock.now_ms(),
                )  # fmt: skip
                self._tables.put(row)
                added.add(id)
            elif old.key != task.key:
                self._reset(old, TaskState.BLOCKED, key=task.key, chunk=task.chunk)
                changed.add(old.id)
        rows = [self._tables.rows[id] for id in added | changed]
        for row in sorted(rows, key=lambda row: (graph.order[row.step], row.id)):
            if not graph.satisfied(row):
                continue
            if row.id in changed:
                self._move(row, TaskState.PENDING)
            else:
                self._tables.put(replace(row, state=TaskState.PENDING))
        return added | changed

    def _stop(self, row: Row, error: str, message: str) -> None:
        """A task failed for good: cancel what can no longer run, let go what still can."""
        graph = self._graph(row.job_id)
        ended_ms = self._clock.now_ms()
        row = self._move(
            row, TaskState.FAILED, error=error, message=message, token=None, ended_ms=ended_ms
        )
        stopped = [row]
        for found in graph.dependants([row], through_plans=True):
            if found.state not in FINISHED and graph.culprit(found) is not None:
                stopped.append(self._cancel(found, _blame(row)))
        self._after(stopped)

    def _cancel(self, row: Row, message: str) -> Row:
        return self._move(row, TaskState.CANCELLED, message=message, token=None)

    def _revive(self, job_id: int, ids: Collection[int]) -> set[int]:
        """Block these stopped tasks again, unless an input they need stays stopped."""
        graph = self._graph(job_id)
        revived: set[int] = set()
        rows = [self._tables.rows[id] for id in ids]
        for row in sorted(rows, key=lambda row: graph.order[row.step]):
            if graph.culprit(row) is None:
                self._reset(row, TaskState.BLOCKED)
                revived.add(row.id)
        return revived

    def _unsettle(self, job_id: int, ids: Collection[int], *, message: str) -> set[int]:
        """Block tasks whose input is no longer there, whatever they did with it."""
        graph = self._graph(job_id)
        changed: set[int] = set()
        rows = [self._tables.rows[id] for id in ids if id in self._tables.rows]
        for row in sorted(rows, key=lambda row: (graph.order[row.step], row.index)):
            if row.state is not TaskState.BLOCKED and row.state not in STOPPED:
                self._reset(row, TaskState.BLOCKED, message=message)
                changed.add(row.id)
        return changed


def _blame(culprit: Row) -> str:
    if culprit.state is TaskState.CANCELLED and culprit.message is not None:
        return culprit.message
    return f"{culprit.name} failed"
