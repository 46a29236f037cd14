"""What the rules of the stateful test share: the ledger, its oracle, and how a step goes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from intermission.errors import StalePlans
from intermission.model import CLAIMABLE, FINISHED, HELD, Completion, Lease, StepKind, TaskState
from intermission.ports.ledger import Ask, Ledger
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import (
    chunks,
    chunks_in,
    completion,
    done_plans,
    tasks_behind,
    tasks_of,
)
from intermission.testing.oracle import Oracle
from intermission.testing.shapes import CAN, shaped

WORKERS = ("w0", "w1", "w2")
JOBS_MAX = 3
TTL_S = 60.0
RECENT = 16
"""A step picks among the newest leases, so that it often meets one that still matters."""
DRAIN_ROUNDS_MAX = 200

picks = st.integers(0, 255)
several = st.lists(picks, min_size=1, max_size=4)

HeldLease = TypeVar("HeldLease", Lease, Completion)


class Machine(RuleBasedStateMachine):
    """A ledger under test, and hands that work on it with the oracle looking on.

    Completions are computed for all who finish together before the first is sent, so that one
    plan may not know of another, and all are kept, so that any may arrive again.
    """

    steps_run = 0
    """Operations on the ledger, each looked at, over all runs of a class."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.ledger = self.open_ledger()
        self.oracle = Oracle(self.ledger, self.clock)
        self.leases: list[Lease] = []
        self.prepared: list[Completion] = []
        self.turn = 0
        self._changing = False

    def open_ledger(self) -> Ledger:
        """A new, empty ledger that reads `self.clock`."""
        raise NotImplementedError

    @contextmanager
    def change(self, *touched: str) -> Iterator[None]:
        """One operation, and the look at what it left. It may change these jobs alone."""
        self._changing = True
        type(self).steps_run += 1
        yield
        self.oracle.look(*touched)
        self._changing = False

    def teardown(self) -> None:
        try:
            if not self._changing:  # else the ledger is known to be wrong, and may never end
                self.drain()
        finally:
            self.ledger.close()

    @initialize(shape=picks)
    def first_job(self, shape: int) -> None:
        self.submit_job("job0", shape, 0)

    def submit_job(self, key: str, shape: int, priority: int) -> None:
        known = self.oracle.jobs.get(key)
        made = shaped(key, shape, priority) if known is None else known.job
        with self.change(*([key] if known is None else [])):
            assert self.ledger.submit(made, tasks_of(made, {})) == (known is None)

    def take(self, worker: str, capacity: int, can: Collection[str]) -> list[Lease]:
        expected = self.oracle.claimable(can, capacity)
        leases = self.ledger.claim(worker, capacity, lease_ttl_s=TTL_S, offers=can)
        with self.change(*{lease.job_key for lease in leases}):
            assert [lease.task_id for lease in leases] == expected
            self.oracle.took(leases, TTL_S)
            self.leases += leases
        assert all(self.oracle.rows[lease.task_id].worker == worker for lease in leases)
        return leases

    def pick(self, picked: int) -> Lease | None:
        """One of the newest leases; three times out of four, one that is still believed."""
        if picked % 4 and not any(self.is_held(lease) for lease in self.leases[-RECENT:]):
            self.take(WORKERS[picked % 3], 1 + picked % 5, [CAN])
        return self.one_of(self.leases[-RECENT:], picked) if self.leases else None

    def pick_some(self, picked: Iterable[int]) -> list[Lease]:
        return [lease for lease in map(self.pick, picked) if lease is not None]

    def seldom(self) -> bool:
        """For what would undo most of what the other rules build up."""
        return self.turn % 8 == 0 and bool(self.oracle.jobs)

    def one_of(self, some: list[HeldLease], picked: int) -> HeldLease:
        held = [one for one in some if self.is_held(one)]
        among = held if held and picked % 4 else some
        return among[picked // 4 % len(among)]

    def is_held(self, one: Lease | Completion) -> bool:
        """Whether whoever has this may still decide about the task."""
        if isinstance(one, Completion) and one.by_receipt:
            row = self.oracle.rows.get(one.task_id)
            return row is not None and row.fence == one.fence and row.state in CLAIMABLE
        return self.oracle.holds(one.task_id, one.fence)

    def key(self, picked: int) -> str:
        """The key of a job the ledger has."""
        keys = sorted(self.oracle.jobs)
        return keys[picked % len(keys)]

    def jobs_of(self, task_ids: Iterable[int]) -> set[str]:
        seen = (self.oracle.job_of(id) for id in task_ids)
        return {found.job.key for found in seen if found is not None}

    def completions(self, leases: Iterable[Lease], count: int, salt: str = "") -> list[Completion]:
        """What these holders would send now, of tasks the ledger still has."""
        found = chunks(count, salt=salt)
        done = [
            completion(self.ledger, seen.job, lease, found, files=count % 2)
            for lease in leases
            if (seen := self.oracle.job_of(lease.task_id)) is not None
        ]
        self.prepared += done
        return done

    def complete(self, batch: Sequence[Completion], worker: str | None = None) -> None:
        """Completions arrive; with `worker`, it asks for what comes next in the same breath."""
        # A holder sends one result, if often: of two in one batch, nobody says which counts.
        first = {(done.task_id, done.fence): done for done in reversed(batch)}
        batch = [done for done in batch if first[done.task_id, done.fence] == done]
        plans = [done for done in batch if self.is_plan(done) and not self._is_outdated(done)]
        batch = [done for done in batch if not self.is_plan(done)]
        if plans and self._is_stale(plans[0]):
            self._expect_stale([*batch, plans[0]])
            return
        # A batch has no order, and a plan may replace what another completion of it is about.
        replanned = self.jobs_of(done.task_id for done in plans[:1])
        batch = [done for done in batch if not self.jobs_of([done.task_id]) & replanned]
        batch += plans[:1]
        expected: list[bool] = []
        accepted = dict(self.oracle.accepted)
        for done in batch:
            place = done.task_id, done.fence
            row = self.oracle.rows.get(done.task_id)
            held = self.is_held(done)
            if held:
                accepted.setdefault(place, done)
            again = row is not None and (row.fence, row.state) == (done.fence, TaskState.DONE)
            expected.append(held or again)
        jobs = self.jobs_of(done.task_id for done in batch)
        leases: list[Lease] = []
        with self.change(*jobs):
            self.oracle.accepted = accepted
            if worker is None:
                assert self.ledger.complete(batch) == expected
            else:
                ask = Ask(worker, 2, TTL_S, offers=[CAN])
                answers, leases = self.ledger.complete_and_claim(batch, ask)
                assert answers == expected
                self.oracle.handed_over(leases, TTL_S)
        self.leases += leases
        assert {lease.job_key for lease in leases} <= jobs
        assert all(self.oracle.rows[lease.task_id].worker == worker for lease in leases)

    def is_plan(self, done: Lease | Completion) -> bool:
        seen = self.oracle.job_of(done.task_id)
        if seen is None:
            return False
        return seen.job.step(seen.rows[done.task_id].step).kind is StepKind.PLAN

    def _is_stale(self, done: Completion) -> bool:
        seen = self.oracle.job_of(done.task_id)
        if seen is None or not self.is_held(done):
            return False
        known = done_plans(self.ledger, seen.job).keys()
        return done.plans != known | {seen.rows[done.task_id].step}

    def _is_outdated(self, done: Completion) -> bool:
        """Another plan ran again since and found other chunks.

        The port tells plans by their names, so a ledger cannot see this; nothing is asked of it.
        """
        seen = self.oracle.job_of(done.task_id)
        if seen is None or not self.is_held(done) or self._is_stale(done):
            return False
        name = seen.rows[done.task_id].step
        plans = done_plans(self.ledger, seen.job) | {name: chunks_in(done.result)}
        return tasks_behind(seen.job, name, plans) != list(done.tasks)

    def _expect_stale(self, batch: Sequence[Completion]) -> None:
        with self.change():  # which touches no job at all
            try:
                self.ledger.complete(batch)
            except StalePlans:
                return
            raise AssertionError("a plan that did not know of another was accepted")

    def rescue_dead(self, dead: Collection[str]) -> None:
        raise NotImplementedError

    def forget_job(self, key: str) -> None:
        held = any(row.state in HELD for row in self.oracle.jobs[key].rows.values())
        with self.change(key):
            assert self.ledger.delete(key) != held
        assert (key in self.oracle.jobs) == held
        if not held:
            self.oracle.cancelled_by_hand.discard(key)

    def any_in(self, *states: TaskState) -> bool:
        return any(row.state in states for row in self.oracle.rows.values())

    def proceed(self, picked: int) -> None:
        """In place of a step that would do nothing now: move on, so that no run idles."""
        leases = self.take(WORKERS[picked % 3], 1 + picked % 4, [CAN])
        done = self.completions(leases, picked // 4 % 4)
        for batch in filter(None, (done[:1], done[1:])):
            self.complete(batch)
        if not leases and self.any_in(*HELD, TaskState.RETRYING):
            self.clock.advance(301.0)
            self.rescue_dead(())
        elif not leases:
            key = self.key(picked) if self.oracle.jobs else "job0"
            if key in self.oracle.jobs:
                self.forget_job(key)
            self.submit_job(key, picked, 0)

    def drain(self) -> None:
        """Let every worker behave: all jobs must end, and nothing may be lost on the way."""
        for _ in range(DRAIN_ROUNDS_MAX):
            self.clock.advance(1000.0)
            self.rescue_dead(())
            if not self.take("w0", 100, [CAN]):
                break
            for lease in self.leases:
                if self.is_held(lease):
                    self.complete(self.completions([lease], 2))
        for seen in self.oracle.jobs.values():
            unfinished = [row for row in seen.rows.values() if row.state not in FINISHED]
            assert not unfinished, f"{seen.job.key} never ends: {unfinished}"


def step(**strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """A rule of hypothesis, which may be several operations on the ledger."""

    def wrap(play: Callable[..., None]) -> Any:
        @wraps(play)
        def counted(machine: Machine, **values: Any) -> None:
            machine.turn += 1
            play(machine, **values)

        counted_rule: Any = rule  # whose overloads do not foresee a mapping
        return counted_rule(**strategies)(counted)

    return wrap
