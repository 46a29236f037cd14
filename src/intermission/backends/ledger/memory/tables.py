"""The rows of a memory ledger, the indexes over them, and the undoing of a transaction.

Every index follows from the rows: `put` and `drop` are the only ways to change a row, so a
rollback that puts the old rows back has put the indexes back too. Knows nothing of edges.
"""

from __future__ import annotations

import heapq
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from intermission.model import (
    CLAIMABLE,
    FINISHED,
    HELD,
    Event,
    Job,
    JobState,
    Limit,
    Receipt,
    TaskRow,
    TaskState,
)

LIVE = frozenset({JobState.PENDING, JobState.RUNNING, JobState.DRAINING})
"""The states of a job whose tasks may be claimed."""


@dataclass(frozen=True, slots=True)
class Row(TaskRow):
    """A task with what only the ledger itself needs to know."""

    job_id: int = 0
    since_ms: int = 0
    """When it came into its state."""
    ready_s: float = 0.0
    expires_s: float = 0.0
    token: str | None = None
    result: str = ""
    receipt: Receipt | None = None
    told: int = 0
    """The progress that the last event told, in hundredths; and when."""
    told_ms: int = 0

    def seen(self) -> TaskRow:
        """The task as the port shows it."""
        return TaskRow(**{name: getattr(self, name) for name in _SEEN})


_SEEN = tuple(field.name for field in fields(TaskRow))


@dataclass(frozen=True, slots=True)
class JobEntry:
    id: int
    job: Job
    state: JobState
    created_ms: int
    updated_ms: int
    reason: str | None = None
    turn: int = 0
    """The number of the newest event when it was last given a task."""


Location = tuple[int, str]
"""A job's id and the name of one of its steps."""


class Tables:
    """Jobs, tasks and events under one lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.jobs: dict[int, JobEntry] = {}
        self.job_ids: dict[str, int] = {}
        self.live: set[int] = set()
        self.rows: dict[int, Row] = {}
        self.at: dict[Location, dict[int, int]] = defaultdict(dict)
        """The task of a step by its chunk's index."""
        self.held: dict[tuple[str, str], set[int]] = defaultdict(set)
        """Tasks that are out on a lease, by pipeline and step."""
        self.tokens: dict[str, int] = {}
        self.events: list[Event] = []
        self.last_seq = 0
        """The number of the newest event; one that is forgotten is not used again."""
        self.limits: dict[str, tuple[Limit, float, int]] = {}
        """Each with how many may start by its rate, as of when."""
        self._by_state: dict[Location, dict[TaskState, set[int]]] = defaultdict(dict)
        self._queues: dict[Location, list[int]] = defaultdict(list)
        self._waiting: list[tuple[float, int]] = []
        self._undo: list[Callable[[], None]] = []
        self._last_id = 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside happens, or nothing does; no one else sees it half done."""
        with self.lock:
            self._undo.clear()
            events = len(self.events)
            try:
                yield
            except BaseException:
                for undo in reversed(self._undo):
                    undo()
                del self.events[events:]
                raise

    def new_id(self) -> int:
        """An id that was never used: a late lease of a deleted task must match no other."""
        self._last_id += 1
        return self._last_id

    def put(self, row: Row) -> None:
        before = self.rows.get(row.id)
        self._undo.append(lambda: self._swap(row, before))
        self._swap(before, row)

    def drop(self, row: Row) -> None:
        self._undo.append(lambda: self._swap(None, row))
        self._swap(row, None)

    def put_job(self, entry: JobEntry) -> None:
        before = self.jobs.get(entry.id)
        self._undo.append(lambda: self._swap_job(entry, before))
        self._swap_job(before, entry)

    def drop_job(self, entry: JobEntry) -> None:
        """Remove a job with its tasks and events."""
        for row in self.of_job(entry.id):
            self.drop(row)
        self._undo.append(lambda: self._swap_job(None, entry))
        self._swap_job(entry, None)
        events = self.events
        self._undo.append(lambda: setattr(self, "events", events))
        self.events = [event for event in events if event.job_key != entry.job.key]

    def _swap(self, before: Row | None, after: Row | None) -> None:
        if before is not None:
            place = before.job_id, before.step
            self._by_state[place][before.state].discard(before.id)
            self.held[self._pipeline(before), before.step].discard(before.id)
            del self.at[place][before.index]
            if before.token is not None and self.tokens.get(before.token) == before.id:
                del self.tokens[before.token]
            del self.rows[before.id]
        if after is not None:
            place = after.job_id, after.step
            self.rows[after.id] = after
            self.at[place][after.index] = after.id
            self._by_state[place].setdefault(after.state, set()).add(after.id)
            if after.state in HELD:
                self.held[self._pipeline(after), after.step].add(after.id)
            if after.token is not None:
                self.tokens[after.token] = after.id
            if after.state is TaskState.RETRYING:
                heapq.heappush(self._waiting, (after.ready_s, after.id))
            elif after.state in CLAIMABLE:
                heapq.heappush(self._queues[place], after.id)

    def _swap_job(self, before: JobEntry | None, after: JobEntry | None) -> None:
        if before is not None:
            del self.jobs[before.id]
            del self.job_ids[before.job.key]
            self.live.discard(before.id)
        if after is not None:
            self.jobs[after.id] = after
            self.job_ids[after.job.key] = after.id
            if after.state in LIVE:
                self.live.add(after.id)

    def _pipeline(self, row: Row) -> str:
        return self.jobs[row.job_id].job.pipeline

    def entry(self, job_key: str) -> JobEntry | None:
        id = self.job_ids.get(job_key)
        return None if id is None else self.jobs[id]

    def task(self, job_id: int, step: str, index: int) -> Row | None:
        id = self.at[job_id, step].get(index)
        return None if id is None else self.rows[id]

    def of_step(self, job_id: int, step: str, *states: TaskState) -> list[Row]:
        """A step's tasks in the order they were added; with states, only those in them."""
        if states:
            found = self._by_state[job_id, step]
            ids = [id for state in states for id in found.get(state, ())]
        else:
            ids = list(self.at[job_id, step].values())
        return [self.rows[id] for id in sorted(ids)]

    def of_job(self, job_id: int, *states: TaskState) -> list[Row]:
        """A job's tasks in the order they were added."""
        steps = self.jobs[job_id].job.steps
        rows = [row for spec in steps for row in self.of_step(job_id, spec.name, *states)]
        return sorted(rows, key=lambda row: row.id)

    def counts(self, job_id: int, step: str) -> dict[TaskState, int]:
        return {state: len(ids) for state, ids in self._by_state[job_id, step].items() if ids}

    def any_unfinished(self, job_id: int, step: str) -> bool:
        return any(state not in FINISHED for state in self.counts(job_id, step))

    def first_claimable(self, job_id: int, step: str, now_s: float) -> int | None:
        """The oldest task of a step whose time has come. Queues forget lazily what changed."""
        while self._waiting and self._waiting[0][0] <= now_s:
            _, id = heapq.heappop(self._waiting)
            if (row := self.rows.get(id)) is not None:
                heapq.heappush(self._queues[row.job_id, row.step], id)
        queue = self._queues[job_id, step]
        while queue:
            row = self.rows.get(queue[0])
            if row is not None and row.state in CLAIMABLE and row.ready_s <= now_s:
                return row.id
            heapq.heappop(queue)
        return None

    def log(
        self,
        at_ms: int,
        job_id: int,
        was: str | None,
        now: str,
        *,
        row: Row | None = None,
        message: str | None = None,
        progress: float | None = None,
    ) -> None:
        """Append one event."""
        self.last_seq += 1
        event = Event(self.last_seq, at_ms, self.jobs[job_id].job.key, None, None, was, now)
        if row is not None:
            event = replace(
                event, task_id=row.id, task=row.name, fence=row.fence, worker=row.worker
            )
        self.events.append(replace(event, message=message, progress=progress))
