"""A stateful test that plays workers, crashes, clocks and users against one ledger.

Subclass `LedgerMachine`, give it `open_ledger`, and run it with hypothesis. After every step
the oracle holds the ledger against what must be true; at the end of a run all workers behave,
and every job must come to its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from intermission.errors import StalePlans
from intermission.model import (
    FINISHED,
    HELD,
    Beat,
    Completion,
    Failure,
    JobState,
    Lease,
    StepKind,
    TaskState,
)
from intermission.ports.ledger import Ledger
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import chunks, completion, done_plans, tasks_of
from intermission.testing.oracle import ENDED, STOPPED, Oracle
from intermission.testing.shapes import CAN, shaped

WORKERS = ("w0", "w1", "w2")
TTL_S = 60.0
RECENT = 16
"""A step picks among the newest leases, so that it often meets one that still matters."""
DRAIN_ROUNDS = 200

picks = st.integers(0, 255)

Held = TypeVar("Held", Lease, Completion)


def seldom(machine: LedgerMachine) -> bool:
    """For what would undo most of what the other rules build up."""
    return machine.turn % 4 == 0


class LedgerMachine(RuleBasedStateMachine):
    """One ledger, three workers, and everything that can go wrong between them."""

    steps_run = 0
    """Steps over all runs of a class, so that a test can say how many there were."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.ledger = self.open_ledger()
        self.oracle = Oracle(self.ledger, self.clock)
        self.leases: list[Lease] = []
        self.prepared: list[Completion] = []
        self.turn = 0
        self._tokens = 0
        self._stepping = False
        self._draining = False

    def open_ledger(self) -> Ledger:
        """A new, empty ledger that reads `self.clock`."""
        raise NotImplementedError

    @contextmanager
    def step(self, *touched: str) -> Iterator[None]:
        """One operation, and then the look at what it left. It may change these jobs alone."""
        type(self).steps_run += not self._draining
        self.turn += 1
        self._stepping = True
        yield
        self.oracle.look(*touched)
        self._stepping = False

    def teardown(self) -> None:
        try:
            if not self._stepping:  # else the ledger is known to be wrong, and may never end
                self.drain()
        finally:
            self.ledger.close()

    @initialize(shape=picks)
    def first_job(self, shape: int) -> None:
        self.submit(0, shape, 0)

    @rule(slot=st.integers(0, 2), shape=picks, priority=st.integers(-1, 1))
    def submit(self, slot: int, shape: int, priority: int) -> None:
        key = f"job{slot}"
        known = self.oracle.jobs.get(key)
        made = shaped(key, shape, priority) if known is None else known.job
        with self.step(*([key] if known is None else [])):
            assert self.ledger.submit(made, tasks_of(made, {})) == (known is None)

    @rule(worker=picks, capacity=st.integers(1, 6), able=st.booleans())
    def claim(self, worker: int, capacity: int, able: bool) -> None:
        self._claim(WORKERS[worker % 3], capacity, [CAN] if able else [])

    def _claim(self, worker: str, capacity: int, can: Collection[str]) -> list[Lease]:
        expected = self.oracle.claimable(can, capacity)
        leases = self.ledger.claim(worker, capacity, lease_ttl_s=TTL_S, can=can)
        with self.step(*{lease.job_key for lease in leases}):
            assert [lease.task_id for lease in leases] == expected
            self.oracle.took(worker, leases, TTL_S)
            self.leases += leases
        rows = self.oracle.rows
        assert all(rows[lease.task_id].worker == worker for lease in leases)
        return leases

    @rule(worker=picks, capacity=st.integers(1, 4), count=st.integers(0, 3), other=st.booleans())
    def work(self, worker: int, capacity: int, count: int, other: bool) -> None:
        """A worker that behaves: it claims, and finishes what it claimed."""
        for lease in self._claim(WORKERS[worker % 3], capacity, [CAN]):
            done = self._prepare(lease, count, "other" if other else "")
            if done is not None:  # a plan among them may have removed the others
                self._complete([done])

    def _pick(self, pick: int) -> Lease:
        """One of the newest leases; three times out of four, one that is still believed."""
        return self._one_of(self.leases[-RECENT:], pick)

    def _one_of(self, some: list[Held], pick: int) -> Held:
        held = [one for one in some if self.oracle.holds(one.task_id, one.fence)]
        among = held if held and pick % 4 else some
        return among[pick // 4 % len(among)]

    def _jobs_of(self, task_ids: Collection[int]) -> set[str]:
        seen = (self.oracle.job_of(id) for id in task_ids)
        return {found.job.key for found in seen if found is not None}

    def _prepare(self, lease: Lease, count: int, salt: str) -> Completion | None:
        seen = self.oracle.jobs.get(lease.job_key)
        if seen is None or lease.task_id not in seen.rows:
            return None
        return completion(self.ledger, seen.job, lease, chunks(count, salt=salt), files=count % 2)

    @precondition(lambda self: self.leases)
    @rule(pick=picks, count=st.integers(0, 3), other=st.booleans())
    def prepare(self, pick: int, count: int, other: bool) -> None:
        """A worker computes a completion, which may arrive much later or never."""
        with self.step():
            done = self._prepare(self._pick(pick), count, "other" if other else "")
            if done is not None:
                self.prepared.append(done)

    @precondition(lambda self: self.prepared)
    @rule(some=st.lists(picks, min_size=1, max_size=3))
    def deliver(self, some: list[int]) -> None:
        """Completions arrive: in time, late, again, in one batch."""
        self._complete([self._one_of(self.prepared[-RECENT:], pick) for pick in some])

    @precondition(lambda self: self.leases)
    @rule(some=st.lists(picks, min_size=1, max_size=4), count=st.integers(0, 3))
    def finish(self, some: list[int], count: int) -> None:
        """Workers finish and say so at once."""
        done = [self._prepare(self._pick(pick), count, "") for pick in some]
        self._complete([one for one in done if one is not None])

    def _complete(self, batch: Sequence[Completion]) -> None:
        # One plan a batch, and last: what it replaces then concerns no one else in the batch.
        plans = [done for done in batch if self._is_plan(done)]
        batch = [done for done in batch if done not in plans] + plans[:1]
        stale = False
        expected: list[bool] = []
        accepted = dict(self.oracle.accepted)
        rows = self.oracle.rows
        for done in batch:
            place = done.task_id, done.fence
            row = rows.get(done.task_id)
            if self.oracle.holds(*place):
                seen = self.oracle.job_of(done.task_id)
                assert seen is not None
                known = set(done_plans(self.ledger, seen.job))
                stale |= self._is_plan(done) and done.plans != known | {rows[done.task_id].step}
                accepted.setdefault(place, done)
                expected.append(True)
            else:
                told = row is not None and (row.fence, row.state) == (done.fence, TaskState.DONE)
                expected.append(told)
        if stale:
            self._expect_stale(batch)
            return
        with self.step(*self._jobs_of([done.task_id for done in batch])):
            self.oracle.accepted = accepted
            assert self.ledger.complete(batch) == expected

    def _expect_stale(self, batch: Sequence[Completion]) -> None:
        with self.step():  # which touches no job at all
            try:
                self.ledger.complete(batch)
            except StalePlans:
                return
            raise AssertionError("a plan that did not know of another was accepted")

    def _is_plan(self, done: Completion) -> bool:
        seen = self.oracle.job_of(done.task_id)
        if seen is None:
            return False
        return seen.job.step(seen.rows[done.task_id].step).kind is StepKind.PLAN

    @precondition(lambda self: self.leases)
    @rule(pick=picks, permanent=st.booleans(), delay_s=st.sampled_from([0.0, 5.0, 300.0]))
    def fail(self, pick: int, permanent: bool, delay_s: float) -> None:
        lease = self._pick(pick)
        holds = self.oracle.holds(lease.task_id, lease.fence)
        failure = Failure(lease.task_id, lease.fence, "Broken", "it broke", permanent, delay_s)
        with self.step(*(self._jobs_of([lease.task_id]) if holds else ())):
            (state,) = self.ledger.fail([failure])
            if holds:
                seen = self.oracle.job_of(lease.task_id)
                assert seen is not None
                row = seen.rows[lease.task_id]
                last = permanent or row.attempts >= seen.job.step(row.step).attempts
                assert state is (TaskState.FAILED if last else TaskState.RETRYING)
                self.oracle.ready_s[row.id] = self.clock.monotonic_s() + delay_s
            else:
                assert state in (None, TaskState.FAILED, TaskState.RETRYING)

    @precondition(lambda self: self.leases)
    @rule(worker=picks, some=st.lists(picks, min_size=1, max_size=4))
    def renew(self, worker: int, some: list[int]) -> None:
        who = WORKERS[worker % 3]
        # One beat a task: an answer by task cannot tell two fences of one task apart.
        leases = list({lease.task_id: lease for lease in map(self._pick, some)}.values())
        kept = [lease for lease in leases if self.oracle.holds(lease.task_id, lease.fence)]
        gone = {lease.task_id for lease in leases if lease not in kept}
        told = {id for id in gone if self._is_cancelled(id)}
        expires_s = self.clock.monotonic_s() + TTL_S
        with self.step(*self._jobs_of([lease.task_id for lease in kept])):
            beats = [Beat(lease.task_id, lease.fence, 0.5) for lease in leases]
            answer = self.ledger.renew(who, beats, lease_ttl_s=TTL_S)
            assert (answer.lost, answer.cancelled) == (gone - told, told)
            for lease in kept:
                if lease.task_id not in self.oracle.deferred:
                    self.oracle.expires_s[lease.task_id] = expires_s
        rows = self.oracle.rows
        assert all(rows[lease.task_id].state is TaskState.RUNNING for lease in kept)

    def _is_cancelled(self, task_id: int) -> bool:
        seen = self.oracle.job_of(task_id)
        return seen is not None and (
            seen.rows[task_id].state is TaskState.CANCELLED
            or seen.shown.state is JobState.CANCELLED
        )

    @precondition(lambda self: self.leases)
    @rule(some=st.lists(picks, min_size=1, max_size=4))
    def release(self, some: list[int]) -> None:
        rows = self.oracle.rows
        leases = [self._pick(pick) for pick in some]
        held = {
            lease.task_id
            for lease in leases
            if self.oracle.holds(lease.task_id, lease.fence) and rows[lease.task_id].state in HELD
        }
        with self.step(*self._jobs_of(held)):
            given_back = [(lease.task_id, lease.fence) for lease in leases]
            assert self.ledger.release(given_back, reason="drain") == len(held)
            self.oracle.deferred -= held
        for id, row in self.oracle.rows.items():
            if id in held:
                assert row.state is TaskState.ABANDONED
                assert row.attempts == max(0, rows[id].attempts - 1)

    @precondition(lambda self: self.leases)
    @rule(pick=picks, timeout_s=st.sampled_from([10.0, 600.0]))
    def defer(self, pick: int, timeout_s: float) -> None:
        lease = self._pick(pick)
        row = self.oracle.rows.get(lease.task_id)
        held = row is not None and row.fence == lease.fence and row.state in HELD
        self._tokens += 1
        token = f"token{self._tokens}"
        with self.step(*(self._jobs_of([lease.task_id]) if held else ())):
            answer = self.ledger.defer(lease.task_id, lease.fence, token=token, timeout_s=timeout_s)
            assert answer == held
            found = self.ledger.deferred(token)
            assert (found is not None) == held
            if held:
                assert found is not None
                assert (found.task_id, found.fence) == (lease.task_id, lease.fence)
                self.oracle.expires_s[lease.task_id] = self.clock.monotonic_s() + timeout_s
                self.oracle.deferred.add(lease.task_id)

    @rule(dead=st.sets(st.sampled_from(WORKERS), max_size=1))
    def rescue(self, dead: set[str]) -> None:
        before = self.oracle.rows
        gone = self.oracle.expired()
        gone |= {id for id, row in before.items() if row.state in HELD and row.worker in dead}
        assert set(self.ledger.workers()) == {
            row.worker for row in before.values() if row.state in HELD and row.worker is not None
        }
        with self.step(*self.oracle.jobs):
            changed = self.ledger.rescue(dead)
            self.oracle.deferred -= gone
        after = self.oracle.rows
        assert (changed > 0) == (after != before)
        for id, row in before.items():
            if id in gone:
                seen = self.oracle.job_of(id)
                assert seen is not None
                last = row.attempts >= seen.job.step(row.step).attempts
                assert after[id].state is (TaskState.FAILED if last else TaskState.ABANDONED)
            elif row.state in HELD:
                assert after[id] == row, "a live lease was touched"

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0, 301.0, 601.0]))
    def time_passes(self, seconds: float) -> None:
        with self.step():
            self.clock.advance(seconds)

    @precondition(seldom)
    @rule(hours=st.sampled_from([-1, 1]))
    def wall_clock_jumps(self, hours: int) -> None:
        with self.step():
            self.clock.jump_wall(3600.0 * hours)

    @precondition(seldom)
    @rule(slot=st.integers(0, 2))
    def cancel(self, slot: int) -> None:
        key = f"job{slot}"
        seen = self.oracle.jobs.get(key)
        live = seen is not None and seen.shown.state not in ENDED
        with self.step(key):
            if live:
                self.oracle.cancelled_by_hand.add(key)
            assert self.ledger.cancel(key, reason="not wanted") == live

    @precondition(seldom)
    @rule(slot=st.integers(0, 2))
    def mark_draining(self, slot: int) -> None:
        key = f"job{slot}"
        seen = self.oracle.jobs.get(key)
        legal = seen is not None and seen.shown.state in (JobState.PENDING, JobState.RUNNING)
        with self.step(key):
            assert self.ledger.mark(key, JobState.DRAINING, reason="spot notice") == legal

    @rule(slot=st.integers(0, 2), some=st.none() | st.lists(picks, max_size=3))
    def retry(self, slot: int, some: list[int] | None) -> None:
        key = f"job{slot}"
        seen = self.oracle.jobs.get(key)
        before = {} if seen is None else seen.rows
        stopped = [id for id, row in before.items() if row.state in STOPPED]
        asked = stopped if some is None else [stopped[n % len(stopped)] for n in some if stopped]
        with self.step(key):
            changed = self.ledger.retry(key, None if some is None else asked)
        if seen is None:
            assert changed == 0
            return
        seen = self.oracle.jobs[key]
        assert changed == sum(row != before[id] for id, row in seen.rows.items())
        for id in asked:
            row = seen.rows[id]
            edges = seen.job.step(row.step).edges
            stays = any(seen.hopeless(edge, row.index) for edge in edges)
            assert (row.state in STOPPED) == stays, f"{row} should have been tried again"
            assert stays or row.attempts == 0

    @rule(some=st.lists(picks, min_size=1, max_size=2))
    def spoil(self, some: list[int]) -> None:
        before = self.oracle.rows
        done = sorted(id for id, row in before.items() if row.state is TaskState.DONE)
        lost = {done[pick % len(done)] for pick in some if done}
        with self.step(*self._jobs_of(lost)):
            spoiled = self.ledger.spoil(lost, reason="its bytes are gone")
        after = self.oracle.rows
        assert {row.id for row in spoiled} == {id for id in after if after[id] != before[id]}
        for id in lost:
            assert after[id].state in (TaskState.CORRUPT, TaskState.BLOCKED)
        assert all(after[row.id].fence > before[row.id].fence for row in spoiled)

    @precondition(seldom)
    @rule(slot=st.integers(0, 2))
    def forget(self, slot: int) -> None:
        key = f"job{slot}"
        seen = self.oracle.jobs.get(key)
        free = seen is not None and not any(row.state in HELD for row in seen.rows.values())
        with self.step(key):
            assert self.ledger.forget(key) == free
        assert (key in self.oracle.jobs) == (seen is not None and not free)
        if free:
            self.oracle.cancelled_by_hand.discard(key)

    def drain(self) -> None:
        """Let every worker behave: all jobs must end, and no step may be lost on the way."""
        self._draining = True
        for _ in range(DRAIN_ROUNDS):
            self.clock.advance(1000.0)
            self.rescue(set())
            if not self._claim("w0", 100, [CAN]):
                break
            for lease in self.leases:
                if not self.oracle.holds(lease.task_id, lease.fence):
                    continue
                done = self._prepare(lease, 2, "")
                if done is not None:
                    self._complete([done])
        for seen in self.oracle.jobs.values():
            unfinished = [row for row in seen.rows.values() if row.state not in FINISHED]
            assert not unfinished, f"{seen.job.key} never ends: {unfinished}"
