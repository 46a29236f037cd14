"""What must hold of a ledger after every operation, whatever the operation was.

The oracle keeps what a worker and a user can know: which leases were handed out, which ends
were accepted, how long leases last. It holds the ledger's rows and events against that and
against the meaning of the edges, and never computes what the ledger should do next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from intermission.engine.inputs import inputs_of
from intermission.model import (
    CLAIMABLE,
    FINISHED,
    HELD,
    LOST_MAX,
    Completion,
    Edge,
    EdgeKind,
    Event,
    Job,
    JobRow,
    JobState,
    Lease,
    Output,
    StepKind,
    TaskRow,
    TaskState,
)
from intermission.ports.ledger import Ledger, every_task
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import chunks_in, tasks_of
from intermission.testing.ledger.history import Trail

ENDED = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})
STOPPED = frozenset({TaskState.FAILED, TaskState.CANCELLED})
EVERYTHING = 8
"""Every so many looks also read the jobs that nobody touched."""
NEEDS_INPUTS = CLAIMABLE | HELD | {TaskState.DONE}


@dataclass
class Seen:
    """One job as it was last read."""

    shown: JobRow
    rows: dict[int, TaskRow]
    places: dict[tuple[str, int], TaskRow] = field(init=False)

    def __post_init__(self) -> None:
        self.places = {(row.step, row.index): row for row in self.rows.values()}

    @property
    def job(self) -> Job:
        return self.shown.job

    def upstream(self, edge: Edge, index: int) -> list[TaskRow | None]:
        """The tasks an edge leads to, None for one that is not there."""
        if edge.kind is EdgeKind.ALL:
            found = [row for row in self.rows.values() if row.step == edge.upstream]
            return sorted(found, key=lambda row: row.index)  # type: ignore[return-value]
        return [self.places.get((edge.upstream, index if edge.kind is EdgeKind.SAME else 0))]

    def plan_behind(self, edge: Edge) -> TaskRow | None:
        """The plan an ALL edge waits for."""
        plan = self.job.step(edge.upstream).plan if edge.kind is EdgeKind.ALL else None
        return None if plan is None else self.places.get((plan, 0))

    def lacks(self, edge: Edge, index: int) -> bool:
        """An input ended without a result, and is not a gap that a fan-in may pass over."""
        stopped = [row for row in self.upstream(edge, index) if row and row.state in STOPPED]
        if edge.kind is EdgeKind.ALL:
            return any(not self.is_gap(row) for row in stopped)
        return bool(stopped)

    def hopeless(self, edge: Edge, index: int) -> bool:
        """The edge cannot be satisfied unless somebody retries what is above it."""
        plan = self.plan_behind(edge)
        return self.lacks(edge, index) or (plan is not None and plan.state in STOPPED)

    def is_doomed(self, row: TaskRow) -> bool:
        return any(self.hopeless(edge, row.index) for edge in self.job.step(row.step).edges)

    def is_gap(self, row: TaskRow) -> bool:
        """The task may be missing: its step says so, or its chunk is a gap further up."""
        spec = self.job.step(row.step)
        if row.state is TaskState.FAILED:
            return spec.skippable
        hopeless = [edge for edge in spec.edges if self.hopeless(edge, row.index)]
        return bool(hopeless) and all(
            edge.kind is EdgeKind.SAME
            and all(above and self.is_gap(above) for above in self.upstream(edge, row.index))
            for edge in hopeless
        )

    def has_inputs(self, row: TaskRow) -> bool:
        """Nothing the task takes is unfinished."""
        for edge in self.job.step(row.step).edges:
            allowed = FINISHED if edge.kind is EdgeKind.ALL else {TaskState.DONE}
            for above in self.upstream(edge, row.index):
                if above is None or above.state not in allowed:
                    return False
        return True

    def may_start(self, row: TaskRow) -> bool:
        edges = self.job.step(row.step).edges
        plans = [self.plan_behind(edge) for edge in edges]
        return (
            self.has_inputs(row)
            and all(plan is None or plan.state is TaskState.DONE for plan in plans)
            and not any(self.hopeless(edge, row.index) for edge in edges)
        )


@lru_cache(maxsize=4096)
def _named(job: Job, results: tuple[tuple[str, str], ...]) -> dict[tuple[str, int], str]:
    """The keys of the tasks that a job has, as far as its done plans tell."""
    plans = {name: chunks_in(text) for name, text in results}
    return {(task.step, task.index): task.key for task in tasks_of(job, plans)}


class Oracle:
    """Reads a ledger after each operation and raises AssertionError when it is wrong."""

    def __init__(self, ledger: Ledger, clock: FakeClock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._trail = Trail()
        self._looks = 0
        self.jobs: dict[str, Seen] = {}
        self.rows: dict[int, TaskRow] = {}
        self._owners: dict[int, Seen] = {}
        self.given: dict[tuple[int, int], Lease] = {}
        """Every lease ever handed out."""
        self.accepted: dict[tuple[int, int], Completion] = {}
        self.expires_s: dict[int, float] = {}
        """When the lease of a held task ends."""
        self.ready_s: dict[int, float] = {}
        """When a retrying task may be claimed."""
        self.deferred: set[int] = set()
        self.served: dict[int, None] = {}
        """Jobs by id, the one that was given a task last at the end."""
        self.cancelled_by_hand: set[str] = set()

    def job_of(self, task_id: int) -> Seen | None:
        return self._owners.get(task_id)

    def holds(self, task_id: int, fence: int) -> bool:
        """Whether the holder of a fence may still decide about the task."""
        row = self.rows.get(task_id)
        late = HELD | {TaskState.ABANDONED}
        return row is not None and row.fence == fence and row.state in late

    def is_last(self, task_id: int) -> bool:
        """Whether one more end of its own is the task's last."""
        seen = self._owners[task_id]
        row = seen.rows[task_id]
        return row.attempts + 1 >= seen.job.step(row.step).attempts

    def is_lost_for_good(self, task_id: int) -> bool:
        """Whether a rescue of the task, which is held, is its end."""
        if task_id in self.deferred:
            return self.is_last(task_id)
        return self.rows[task_id].lost + 1 >= LOST_MAX

    def look(self, *touched: str) -> None:
        """Read what an operation left and check it: these jobs may have changed, no other."""
        events = self._trail.follow(self._ledger)
        for event in events:
            assert event.job_key in touched, f"nobody touched that job: {event}"
        self._check_ends(events)
        self._looks += 1
        before = self.jobs
        if self._looks % EVERYTHING == 0:
            self.jobs = {row.job.key: self._read(row) for row in self._ledger.jobs()}
            assert before.keys() - touched <= self.jobs.keys(), "a job vanished"
        else:
            self.jobs = {key: seen for key, seen in before.items() if key not in touched}
            found = [row for key in set(touched) for row in self._ledger.jobs(key)]
            self.jobs |= {row.job.key: self._read(row) for row in found}
        self._owners = {id: seen for seen in self.jobs.values() for id in seen.rows}
        self.rows = {id: seen.rows[id] for id, seen in self._owners.items()}
        for key, seen in self.jobs.items():
            if key in touched:
                self._check_job(seen, before.get(key))
            else:
                assert seen == before.get(key), f"{key} changed, but nobody touched it"

    def _read(self, shown: JobRow) -> Seen:
        rows = every_task(self._ledger, shown.job.key)
        # When a retry is due is told by the wall clock, which may jump; the oracle has its own.
        told = (replace(row, ready_ms=None) if row.ready_ms else row for row in rows)
        return Seen(shown, {row.id: row for row in told})

    def _check_job(self, seen: Seen, was: Seen | None) -> None:
        self._trail.check(seen.shown, seen.rows.values())
        for row in seen.rows.values():
            if row.state is TaskState.DONE:
                assert (row.id, row.fence) in self.accepted, f"{row} was never completed"
        self._check_plans(seen)
        for row in seen.rows.values():
            old = None if was is None else was.rows.get(row.id)
            assert old is None or row.fence >= old.fence, f"the fence went back: {old} -> {row}"
            self._check_task(seen, row)
            if row.state is TaskState.CANCELLED and (old is None or old.state is not row.state):
                by_hand = seen.job.key in self.cancelled_by_hand
                assert by_hand or seen.is_doomed(row), f"{row} was cancelled for nothing"
        states = {row.state for row in seen.rows.values()}
        shown = seen.shown
        assert (shown.state in ENDED) == (states <= FINISHED), f"{shown.job.key}: {shown.state}"
        if shown.state in ENDED:
            self._check_outcome(seen)

    def _check_task(self, seen: Seen, row: TaskRow) -> None:
        edges = seen.job.step(row.step).edges
        if row.state in NEEDS_INPUTS:
            assert seen.has_inputs(row), f"{row} is ahead of its inputs"
        if row.state in CLAIMABLE | HELD:
            lacks = any(seen.lacks(edge, row.index) for edge in edges)
            assert not lacks, f"{row} runs without an input that failed"
        if row.state is TaskState.BLOCKED:
            assert not seen.may_start(row), f"nobody told {row} that its inputs are there"
            assert not seen.is_doomed(row), f"{row} waits for an input that will never come"
        if row.state in HELD:
            assert (row.id, row.fence) in self.given, f"{row} is held by nobody"

    def _check_plans(self, seen: Seen) -> None:
        """What the plans that are done call for is there, and no chunk more."""
        found: list[tuple[str, str]] = []
        for spec in seen.job.steps:
            row = seen.places.get((spec.name, 0))
            if spec.kind is StepKind.PLAN and row is not None and row.state is TaskState.DONE:
                found.append((spec.name, self.accepted[row.id, row.fence].result))
        named = _named(seen.job, tuple(found))
        for place, key in named.items():
            row = seen.places.get(place)
            found_key = None if row is None else row.key
            assert found_key == key, f"{place} is not what was planned: {row}"
        planned = {step for step, _ in named}
        extra = [p for p in seen.places if p[0] in planned and p not in named]
        assert not extra, f"nobody plans {extra} any more"

    def _check_outcome(self, seen: Seen) -> None:
        stopped = [row for row in seen.rows.values() if row.state in STOPPED]
        holes = {row.state for row in stopped if not seen.is_gap(row)}
        state = seen.shown.state
        if state is JobState.DONE:
            assert not holes, f"{seen.job.key} is done, but not all of it: {holes}"
        elif state is JobState.FAILED:
            assert TaskState.FAILED in holes, f"{seen.job.key} failed without a failed task"
        else:
            by_hand = seen.job.key in self.cancelled_by_hand
            assert by_hand or holes == {TaskState.CANCELLED}, f"{seen.job.key}: who cancelled it?"

    def _check_ends(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.task_id is not None and event.now == TaskState.DONE:
                assert event.fence is not None
                end = event.task_id, event.fence
                assert end in self.accepted, f"nobody completed {event}"
                assert self._trail.ends[end] == 1, f"completed twice: {event}"

    def took(self, leases: Iterable[Lease], lease_ttl_s: float) -> None:
        """Leases were handed out: each to one holder, with the inputs as they are."""
        for lease in leases:
            place = lease.task_id, lease.fence
            assert place not in self.given, f"handed out twice: {lease}"
            seen = self.job_of(lease.task_id)
            assert seen is not None, f"no such task: {lease}"
            row = seen.rows[lease.task_id]
            assert (row.fence + 1, row.attempts + 1) == (lease.fence, lease.attempt)
            taken = inputs_of(self._ledger, seen.job, lease)
            found = {param: tuple(outputs) for param, outputs in taken.items()}
            assert found == self._inputs(seen, row), f"wrong inputs for {row}"
            self._note_given(lease, lease_ttl_s)

    def handed_over(self, leases: Iterable[Lease], lease_ttl_s: float) -> None:
        """Leases came with the ends of others: what these left is seen only later."""
        for lease in leases:
            assert (lease.task_id, lease.fence) not in self.given, f"handed out twice: {lease}"
            self._note_given(lease, lease_ttl_s)

    def _note_given(self, lease: Lease, lease_ttl_s: float) -> None:
        self.given[lease.task_id, lease.fence] = lease
        job_id = self.jobs[lease.job_key].shown.id
        self.served.pop(job_id, None)
        self.served[job_id] = None
        self.expires_s[lease.task_id] = self._clock.monotonic_s() + lease_ttl_s
        self.deferred.discard(lease.task_id)

    def _inputs(self, seen: Seen, row: TaskRow) -> dict[str, tuple[Output | None, ...]]:
        return {
            edge.param: tuple(self._output(above) for above in seen.upstream(edge, row.index))
            for edge in seen.job.step(row.step).edges
        }

    def _output(self, row: TaskRow | None) -> Output | None:
        if row is None or row.state is not TaskState.DONE:
            return None
        done = self.accepted[row.id, row.fence]
        assert done.receipt is not None
        return Output(done.receipt.task_key, done.result, done.receipt.files)

    def claimable(self, can: Iterable[str], capacity: int) -> list[int]:
        """The ids a claim must hand out, in order."""
        rows = self.rows
        held: dict[tuple[str, str], int] = {}
        for seen in self.jobs.values():
            for row in seen.rows.values():
                place = seen.job.pipeline, row.step
                held[place] = held.get(place, 0) + (row.state in HELD)
        jobs = [seen for seen in self.jobs.values() if seen.shown.state not in ENDED]
        turns = {key: turn for turn, key in enumerate(self.served, 1)}
        jobs.sort(key=lambda seen: (-seen.job.priority, turns.get(seen.shown.id, 0), seen.shown.id))
        found: list[int] = []
        for seen in jobs:
            for id in sorted(seen.rows):
                spec = seen.job.step(rows[id].step)
                place = seen.job.pipeline, spec.name
                if (
                    len(found) < capacity
                    and rows[id].state in CLAIMABLE
                    and not self._waits(rows[id])
                    and (spec.needs is None or spec.needs in can)
                    and (spec.concurrency is None or held[place] < spec.concurrency)
                ):
                    found.append(id)
                    held[place] += 1
        return found

    def _waits(self, row: TaskRow) -> bool:
        retrying = row.state is TaskState.RETRYING
        return retrying and self.ready_s[row.id] > self._clock.monotonic_s()

    def expired(self) -> set[int]:
        now_s = self._clock.monotonic_s()
        return {
            id for id, row in self.rows.items() if row.state in HELD and self.expires_s[id] <= now_s
        }
