"""Ledgers with one bug each, of the kinds real systems had. The suites must find every one."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from intermission.backends.ledger.memory import MemoryLedger
from intermission.backends.ledger.memory.changes import STOPPED
from intermission.backends.ledger.memory.tables import Row
from intermission.errors import LedgerError
from intermission.model import (
    FINISHED,
    HELD,
    Completion,
    Heartbeat,
    JobState,
    Lease,
    Renewal,
    StepKind,
    Task,
    TaskRow,
    TaskState,
)
from intermission.ports.clock import Clock
from intermission.testing.clock import FakeClock
from intermission.testing.ledger import LedgerContract
from intermission.testing.ledger.history import check_history
from intermission.testing.machine import LedgerMachine

RUNS = settings(
    max_examples=400,
    stateful_step_count=60,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class ForgetsTheFence(MemoryLedger):
    """A completion counts for the task, whoever sends it."""

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        rows = self._tables.rows
        current = [
            replace(one, fence=rows[one.task_id].fence) if one.task_id in rows else one
            for one in done
        ]
        return super().complete(current)


class CountsDown(MemoryLedger):
    """A fan-in keeps a counter of its inputs and takes one off for every completion it hears."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self._left: dict[tuple[int, str], int] = {}

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        with self._tables.transaction():
            accepted = super().complete(done)
            for one, taken in zip(done, accepted, strict=True):
                row = self._tables.rows.get(one.task_id)
                if taken and row is not None and row.chunk is not None:
                    self._count_down(row)
            return accepted

    def _count_down(self, row: Row) -> None:
        place = row.job_id, row.step
        total = len(self._tables.of_step(*place))
        self._left[place] = self._left.get(place, total) - 1
        if self._left[place] > 0:
            return
        for step, _ in self._graph(row.job_id).downstream[row.step]:
            for waiting in self._tables.of_step(row.job_id, step, TaskState.BLOCKED):
                if waiting.chunk is None:
                    self._move(waiting, TaskState.PENDING)


class HandsOutTwice(MemoryLedger):
    """A claim that finds nothing offers what somebody else is working on."""

    def claim(self, worker: str, capacity: int, **options: Any) -> list[Lease]:
        leases = super().claim(worker, capacity, **options)
        if leases:
            return leases
        held = [self._tables.rows[id] for ids in self._tables.held.values() for id in ids]
        return [self._lease(row) for row in held[:capacity]]


class RescuesByTimeAlone(MemoryLedger):
    """Whatever was claimed long ago is handed out again, finished or not."""

    def rescue(self, dead: Collection[str] = ()) -> int:
        changed = super().rescue(dead)
        with self._tables.transaction():
            now_s = self._clock.monotonic_s()
            for row in list(self._tables.rows.values()):
                if row.state is TaskState.DONE and row.expires_s <= now_s:
                    self._tables.put(replace(row, state=TaskState.ABANDONED))
                    changed += 1
        return changed


class RefusesLateBeats(MemoryLedger):
    """A renewal after the expiry is refused, though nobody else wants the task."""

    def renew(self, worker: str, heartbeats: Sequence[Heartbeat], *, lease_ttl_s: float) -> Renewal:
        now_s = self._clock.monotonic_s()
        rows = self._tables.rows
        late = [b for b in heartbeats if b.task_id in rows and rows[b.task_id].expires_s <= now_s]
        kept = [heartbeat for heartbeat in heartbeats if heartbeat not in late]
        answer = super().renew(worker, kept, lease_ttl_s=lease_ttl_s)
        return replace(answer, lost=answer.lost | {heartbeat.task_id for heartbeat in late})


class CountsDrains(MemoryLedger):
    """A drain uses up an attempt, so a fleet of spot machines fails everything in the end."""

    def release(self, leases: Iterable[tuple[int, int]], *, reason: str) -> int:
        wanted = list(leases)
        before = {id: self._tables.rows[id].attempts for id, _ in wanted if id in self._tables.rows}
        released = super().release(wanted, reason=reason)
        with self._tables.transaction():
            for id, attempts in before.items():
                self._tables.put(replace(self._tables.rows[id], attempts=attempts))
        return released


class CountsExceptionsOnly(MemoryLedger):
    """A crash is no failed attempt: a task that kills its worker does so for ever."""

    def rescue(self, dead: Collection[str] = ()) -> int:
        with self._tables.transaction():
            for ids in self._tables.held.values():
                for row in [self._tables.rows[id] for id in ids]:
                    if self._clock.monotonic_s() >= row.expires_s or row.worker in dead:
                        self._tables.put(replace(row, attempts=max(0, row.attempts - 1)))
            return super().rescue(dead)


class MissesItsPlans(MemoryLedger):
    """Two plans end at once, each unaware of the other, and nobody adds what needs both."""

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        with self._tables.transaction():
            known = [self._knowing(one) for one in done]
            return super().complete(known)

    def _knowing(self, one: Completion) -> Completion:
        row = self._tables.rows.get(one.task_id)
        if row is None or self._graph(row.job_id).spec(row).kind is not StepKind.PLAN:
            return one
        return replace(one, plans=self._graph(row.job_id).done_plans() | {row.step})


class CommitsHalfABatch(MemoryLedger):
    """Each completion is a transaction of its own, so a refused batch is half done."""

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        return [super(CommitsHalfABatch, self).complete([one])[0] for one in done]


class AssemblesOverFailures(MemoryLedger):
    """A fan-in takes every ended input for good enough."""

    def fail(self, failures: Sequence[Any]) -> list[TaskState | None]:
        with self._tables.transaction():
            states = super().fail(failures)
            for row in list(self._tables.rows.values()):
                graph = self._graph(row.job_id)
                fan_in = graph.spec(row).kind is StepKind.REDUCE
                if fan_in and row.state is TaskState.CANCELLED:
                    inputs = [edge.upstream for edge in graph.spec(row).edges]
                    if not any(self._tables.any_unfinished(row.job_id, step) for step in inputs):
                        self._move(row, TaskState.PENDING)
            return states


class LosesWakeUps(MemoryLedger):
    """A gap ends its chunk, but nobody tells the fan-in that waited for it."""

    def _after(self, ended: Iterable[Row]) -> None:
        rows = list(ended)
        if any(row.state in STOPPED for row in rows):
            for job_id in {row.job_id for row in rows}:
                self._settle(job_id)
        else:
            super()._after(rows)


class KeepsTheFenceOfLostWork(MemoryLedger):
    """Bytes are lost, but the one who wrote them may still complete the task again."""

    def invalidate(self, task_ids: Collection[int], *, reason: str) -> list[TaskRow]:
        with self._tables.transaction():
            spoiled = super().invalidate(task_ids, reason=reason)
            for found in spoiled:
                row = self._tables.rows[found.id]
                self._tables.put(replace(row, fence=row.fence - 1))
            return [self._tables.rows[found.id].seen() for found in spoiled]


class LeavesDependantsDone(MemoryLedger):
    """Lost bytes send a task back, but what was made of them stays."""

    def _unsettle(self, job_id: int, ids: Collection[int], *, message: str) -> set[int]:
        return set()


class EndsTooSoon(MemoryLedger):
    """Whether a job has ended is asked before what waited is told to start."""

    def _after(self, ended: Iterable[Row]) -> None:
        rows = list(ended)
        for job_id in {row.job_id for row in rows}:
            settled = self._tables.of_job(job_id, TaskState.BLOCKED, *FINISHED)
            if settled == self._tables.of_job(job_id):
                self._set_job(self._tables.jobs[job_id], JobState.DONE)
        super()._after(rows)


class ForgetsEvents(MemoryLedger):
    """A task is put back without a word to whoever watches."""

    def release(self, leases: Iterable[tuple[int, int]], *, reason: str) -> int:
        with self._tables.transaction():
            before = len(self._tables.events)
            released = super().release(leases, reason=reason)
            del self._tables.events[before:]
            return released


class GoesByTheWallClock(MemoryLedger):
    """A jump of the wall clock ends every lease."""

    def rescue(self, dead: Collection[str] = ()) -> int:
        late = [
            row.worker
            for row in self._tables.rows.values()
            if row.state in HELD
            and row.started_ms is not None
            and row.worker is not None
            and abs(self._clock.now_ms() - row.started_ms) > 3_000_000
        ]
        return super().rescue({*dead, *late})


class AddsTwice(MemoryLedger):
    """A plan that runs again leaves what it found before."""

    def _replan(self, plan: Row, tasks: Iterable[Task]) -> None:
        self._insert(plan.job_id, tasks)
        self._sweep(plan.job_id)


BROKEN = [
    ForgetsTheFence,
    CountsDown,
    HandsOutTwice,
    RescuesByTimeAlone,
    RefusesLateBeats,
    CountsDrains,
    CountsExceptionsOnly,
    MissesItsPlans,
    CommitsHalfABatch,
    AssemblesOverFailures,
    LosesWakeUps,
    KeepsTheFenceOfLostWork,
    LeavesDependantsDone,
    EndsTooSoon,
    ForgetsEvents,
    GoesByTheWallClock,
    AddsTwice,
]


def failures(broken: type[MemoryLedger]) -> Iterator[str]:
    """The tests of the contract that this ledger does not pass."""
    suite = LedgerContract()
    for name, test in inspect.getmembers(suite, inspect.ismethod):
        if not name.startswith("test_"):
            continue
        clock = FakeClock()
        ledger = broken(clock=clock)
        brought: dict[str, Any] = {
            "ledger": ledger,
            "clock": clock,
            "open_ledger": lambda ledger=ledger: ledger,
        }
        try:
            test(**{wanted: brought[wanted] for wanted in inspect.signature(test).parameters})
            check_history(ledger)
        except (AssertionError, LedgerError, pytest.fail.Exception):
            yield name


def machine_over(broken: type[MemoryLedger]) -> type[LedgerMachine]:
    class Machine(LedgerMachine):
        def open_ledger(self) -> MemoryLedger:
            return broken(clock=self.clock)

    return Machine


def finds(broken: type[MemoryLedger]) -> bool:
    """Whether the stateful test tells this ledger from a right one."""
    try:
        run_state_machine_as_test(machine_over(broken), settings=RUNS)
    except (AssertionError, LedgerError):
        return True
    return False


def test_a_right_ledger_passes() -> None:
    assert list(failures(MemoryLedger)) == []


@pytest.mark.parametrize("broken", BROKEN)
def test_the_contract_finds(broken: type[MemoryLedger]) -> None:
    assert next(failures(broken), None) is not None


@pytest.mark.parametrize("broken", BROKEN)
def test_the_machine_finds(broken: type[MemoryLedger]) -> None:
    assert finds(broken)
