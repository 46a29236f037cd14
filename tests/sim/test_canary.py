"""Ledgers with one bug each, of the kinds real systems had. The suites must find every one."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from intermission.backends.ledger.sql.database import Place
from intermission.backends.ledger.sql.graph_rules import GraphRules
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.ledger.sqlite.connection import SQL
from intermission.backends.ledger.sqlite.database import SqliteDatabase
from intermission.errors import LedgerError
from intermission.model import (
    Completion,
    Heartbeat,
    Lease,
    Renewal,
    StepKind,
    TaskRow,
    TaskState,
)
from intermission.ports.clock import Clock, SystemClock
from intermission.testing.clock import FakeClock
from intermission.testing.ledger import LedgerContract
from intermission.testing.ledger.history import check_history
from intermission.testing.machine import LedgerMachine
from intermission.testing.scratch_ledger import scratch_ledger

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


class Watched(SqliteLedger):
    """What the ledgers with a bug have in common: a look at the rows, and a hand on them."""

    rules: type[GraphRules] = GraphRules

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        super().__init__(path, clock=clock)
        self.clock = clock or SystemClock()
        self._graph = self.rules(self.database, self._specs)

    def look(self, sql: str, *values: Any) -> list[Any]:
        return self.database.connection.execute(sql, values).fetchall()

    def change(self, sql: str, *values: Any) -> None:
        """A statement that no rule of the ledger's looks at; claims find what it made claimable."""

        def work() -> None:
            self.database.connection.execute(sql, values)
            for (job_id,) in self.look("SELECT id FROM jobs"):
                self.database.rows("open_steps", job=job_id)

        self.database.change(work)


class ForgetsTheFence(Watched):
    """A completion counts for the task, whoever sends it."""

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        current = [
            replace(one, fence=fence)
            for one in done
            for (fence,) in self.look("SELECT fence FROM tasks WHERE id = ?", one.task_id)
            or [(one.fence,)]
        ]
        return super().complete(current)


class CountsDown(Watched):
    """A fan-in keeps a counter of its inputs and takes one off for every completion it hears."""

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        super().__init__(path, clock=clock)
        self._left: dict[tuple[int, int], int] = {}

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        accepted = super().complete(done)
        for one, taken in zip(done, accepted, strict=True):
            sql = "SELECT job_id, step FROM tasks WHERE id = ? AND chunk IS NOT NULL"
            for job_id, step in self.look(sql, one.task_id) if taken else []:
                self._count_down(job_id, step)
        return accepted

    def _count_down(self, job_id: int, step: int) -> None:
        sql = "SELECT count(*) FROM tasks WHERE job_id = ? AND step = ?"
        total: int = self.look(sql, job_id, step)[0][0]
        self._left[job_id, step] = self._left.get((job_id, step), total) - 1
        if self._left[job_id, step] <= 0:
            self.change(
                "UPDATE tasks SET state = 'pending' WHERE job_id = ? AND state = 'blocked' "
                "AND chunk IS NULL AND step IN "
                "(SELECT e.step FROM edges AS e WHERE e.job_id = tasks.job_id AND e.upstream = ?)",
                job_id,
                step,
            )


class HandsOutTwice(Watched):
    """A claim that finds nothing offers what another worker is working on."""

    def claim(self, worker: str, capacity: int, **options: Any) -> list[Lease]:
        leases = super().claim(worker, capacity, **options)
        if leases:
            return leases
        held = self.look(
            "SELECT id, fence, attempts + 1, job_id, step, idx, key, chunk FROM tasks "
            "WHERE state IN ('leased', 'running') LIMIT ?",
            capacity,
        )
        return [
            Lease(id, fence, attempt, job.key, job.steps[step].name, index, key, chunk)
            for id, fence, attempt, job_id, step, index, key, chunk in held
            for job in [self._specs.job(job_id)]
        ]


class RescuesByTimeAlone(Watched):
    """Whatever was claimed long ago is handed out again, finished or not."""

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        super().__init__(path, clock=clock)
        self.database.connection.execute("DROP TRIGGER temp.task_changes")
        self.database.connection.execute(SQL["watch_tasks"].replace(":illegal", "0"))

    def rescue(self, dead: Collection[str] = ()) -> int:
        changed = super().rescue(dead)
        late = self.clock.now_ms() - 60_000
        self.change(
            "UPDATE tasks SET state = 'abandoned' WHERE state = 'done' AND started_ms <= ?", late
        )
        return changed


class RefusesLateBeats(Watched):
    """A renewal that comes late is refused, though nobody else wants the task."""

    def renew(self, worker: str, heartbeats: Sequence[Heartbeat], *, lease_ttl_s: float) -> Renewal:
        now_s = self.clock.monotonic_s()
        sql = "SELECT id FROM tasks WHERE lease_s - 30 <= ?"
        expired = {id for (id,) in self.look(sql, now_s)}
        kept = [heartbeat for heartbeat in heartbeats if heartbeat.task_id not in expired]
        answer = super().renew(worker, kept, lease_ttl_s=lease_ttl_s)
        late = {one.task_id for one in heartbeats if one.task_id in expired}
        return replace(answer, lost=answer.lost | late)


class CountsDrains(Watched):
    """A drain uses up an attempt, so a fleet of spot machines fails everything in the end."""

    def release(self, leases: Iterable[tuple[int, int]], *, reason: str, **host: Any) -> int:
        wanted = list(leases)
        released = super().release(wanted, reason=reason, **host)
        for id, fence in wanted:
            self.change(
                "UPDATE tasks SET attempts = attempts + 1 "
                "WHERE id = ? AND fence = ? AND state = 'abandoned'",
                id,
                fence,
            )
        return released


class ForgetsTheLost(Watched):
    """A vanished worker is not counted: a task that kills its worker does so for ever."""

    def rescue(self, dead: Collection[str] = ()) -> int:
        self.change("UPDATE tasks SET begun = 0 WHERE state IN ('leased', 'running')")
        return super().rescue(dead)


class CountsTheLostAsAttempts(Watched):
    """A vanished worker uses up an attempt, so that enough interruptions fail a job."""

    def rescue(self, dead: Collection[str] = ()) -> int:
        ((last,),) = self.look(SQL["last_event"])
        changed = super().rescue(dead)
        self.change(
            "UPDATE tasks SET attempts = attempts + 1 WHERE state = 'abandoned' AND id IN "
            "(SELECT i.value FROM events AS e, json_each(e.tasks) AS i "
            " WHERE e.seq > ? AND e.code = 'lost')",
            last,
        )
        return changed


class MissesItsPlans(Watched):
    """Two plans end at once, each unaware of the other, and nobody adds what needs both."""

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        return super().complete([self._knowing(one) for one in done])

    def _knowing(self, one: Completion) -> Completion:
        for job_id, step in self.look("SELECT job_id, step FROM tasks WHERE id = ?", one.task_id):
            job = self._specs.job(job_id)
            if job.steps[step].kind is StepKind.PLAN:
                sql = "SELECT step FROM tasks WHERE job_id = ? AND (state = 'done' OR id = ?)"
                names = {job.steps[no] for (no,) in self.look(sql, job_id, one.task_id)}
                done = {spec.name for spec in names if spec.kind is StepKind.PLAN}
                return replace(one, plans=frozenset(done))
        return one


class CommitsHalfABatch(Watched):
    """Each completion is a transaction of its own, so a refused batch is half done."""

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        return [super(CommitsHalfABatch, self).complete([one])[0] for one in done]


class AssemblesOverFailures(Watched):
    """A fan-in takes every ended input for good enough."""

    def fail(self, failures: Sequence[Any]) -> list[TaskState | None]:
        states = super().fail(failures)
        self.change(
            "UPDATE tasks SET state = 'pending' WHERE state = 'cancelled' AND EXISTS "
            "(SELECT 1 FROM edges AS e WHERE e.job_id = tasks.job_id AND e.step = tasks.step "
            " AND e.kind = 'all') AND NOT EXISTS "
            "(SELECT 1 FROM edges AS e JOIN unfinished AS u "
            " ON u.job_id = e.job_id AND u.step = e.upstream "
            " WHERE e.job_id = tasks.job_id AND e.step = tasks.step)"
        )
        return states


class LosesWakeUps(Watched):
    """A skipped chunk ends, but nobody tells the fan-in that waited for it."""

    class rules(GraphRules):
        def _unblock(self, places: Sequence[Place]) -> int:
            heard = [one for one in places if not self._db.rows("any_stopped", job=one[0])[0][0]]
            return super()._unblock(heard)


class KeepsTheFenceOfLostWork(Watched):
    """Bytes are lost, but the one who wrote them may still complete the task again."""

    def invalidate(self, task_ids: Collection[int], *, reason: str) -> list[TaskRow]:
        lost = super().invalidate(task_ids, reason=reason)
        for found in lost:
            self.change("UPDATE tasks SET fence = fence - 1 WHERE id = ?", found.id)
        return [replace(found, fence=found.fence - 1) for found in lost]


class LeavesDependantsDone(Watched):
    """Lost bytes send a task back, but what was made of them stays."""

    class rules(GraphRules):
        def _put_back(self, *args: Any, **options: Any) -> set[int]:
            return set() if "an input was lost" in args else super()._put_back(*args, **options)


class EndsTooSoon(Watched):
    """Whether a job has ended is asked before what waited is told to start."""

    class rules(GraphRules):
        def unblock_after(self, ended: Mapping[tuple[int, int], Collection[int]]) -> None:
            assert isinstance(self._db, SqliteDatabase)
            for job_id in {job_id for job_id, _ in ended}:
                self._db.connection.execute(
                    "UPDATE jobs SET state = 'done' WHERE id = :job AND state = 'running' "
                    "AND NOT EXISTS (SELECT 1 FROM tasks WHERE job_id = :job AND state NOT IN "
                    "('blocked', 'done', 'failed', 'cancelled'))",
                    {"job": job_id},
                )
            super().unblock_after(ended)


class ForgetsEvents(Watched):
    """A task is put back without a word to whoever watches."""

    def release(self, leases: Iterable[tuple[int, int]], *, reason: str, **host: Any) -> int:
        ((last,),) = self.look(SQL["last_event"])
        released = super().release(leases, reason=reason, **host)
        self.change("DELETE FROM events WHERE seq > ?", last)
        return released


class GoesByTheWallClock(Watched):
    """A jump of the wall clock ends every lease."""

    def rescue(self, dead: Collection[str] = ()) -> int:
        sql = (
            "SELECT worker FROM tasks WHERE state IN ('leased', 'running') "
            "AND worker IS NOT NULL AND abs(? - started_ms) > 3000000"
        )
        late = [worker for (worker,) in self.look(sql, self.clock.now_ms())]
        return super().rescue({*dead, *late})


class AddsTwice(Watched):
    """A plan that runs again leaves what it found before."""

    class rules(GraphRules):
        def close_plan(self, job_id: int, plan: int, completion: Completion) -> None:
            self.add_page(job_id, completion.tasks)
            self._restart(job_id, [job_id])


BROKEN = [
    ForgetsTheFence,
    CountsDown,
    HandsOutTwice,
    RescuesByTimeAlone,
    RefusesLateBeats,
    CountsDrains,
    ForgetsTheLost,
    CountsTheLostAsAttempts,
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


def failures(broken: type[SqliteLedger]) -> Iterator[str]:
    """The tests of the contract that this ledger does not pass."""
    suite = LedgerContract()
    for name, test in inspect.getmembers(suite, inspect.ismethod):
        if not name.startswith("test_"):
            continue
        clock = FakeClock()
        ledger = scratch_ledger(clock, broken)
        brought: dict[str, Any] = {
            "ledger": ledger,
            "clock": clock,
            "open_ledger": partial(broken, ledger.path, clock=clock),
        }
        try:
            test(**{wanted: brought[wanted] for wanted in inspect.signature(test).parameters})
            check_history(ledger)
        except (AssertionError, LedgerError, pytest.fail.Exception):
            yield name


def machine_over(broken: type[SqliteLedger]) -> type[LedgerMachine]:
    class Machine(LedgerMachine):
        def open_ledger(self) -> SqliteLedger:
            return scratch_ledger(self.clock, broken)

    return Machine


def finds(broken: type[SqliteLedger]) -> bool:
    """Whether the stateful test tells this ledger from a right one."""
    try:
        run_state_machine_as_test(machine_over(broken), settings=RUNS)
    except (AssertionError, LedgerError):
        return True
    return False


def test_a_right_ledger_passes() -> None:
    assert list(failures(SqliteLedger)) == []


@pytest.mark.parametrize("broken", BROKEN)
def test_the_contract_finds(broken: type[SqliteLedger]) -> None:
    assert next(failures(broken), None) is not None


@pytest.mark.parametrize("broken", BROKEN)
def test_the_machine_finds(broken: type[SqliteLedger]) -> None:
    assert finds(broken)
