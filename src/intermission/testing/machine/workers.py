"""The rules of the stateful test that workers and their accidents play."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import hypothesis.strategies as st

from intermission.model import CLAIMABLE, HELD, Failure, Heartbeat, JobState, Lease, TaskState
from intermission.testing.jobs import chunks, completion
from intermission.testing.machine.base import (
    RECENT,
    TTL_S,
    WORKERS,
    Machine,
    picks,
    several,
    step,
)
from intermission.testing.shapes import CAN


class Workers(Machine):
    """Claiming, renewing, ending, dying, and time."""

    @step(worker=picks, capacity=st.integers(1, 6), able=st.booleans())
    def claim(self, worker: int, capacity: int, able: bool) -> None:
        self.take(WORKERS[worker % 3], capacity, [CAN] if able else [])

    @step(pick=picks)
    def work(self, pick: int) -> None:
        """A worker that behaves: it claims, and finishes what it claimed."""
        self.proceed(pick)

    @step(pick=picks, count=st.integers(0, 3), other=st.booleans())
    def prepare(self, pick: int, count: int, other: bool) -> None:
        """Workers compute completions, which may arrive much later or never."""
        self.pick(pick)  # so that there is somebody at work
        held = filter(self.is_held, self.leases[-RECENT:])
        self.completions(held, count, "other" if other else "")

    @step(some=several)
    def deliver(self, some: list[int]) -> None:
        """Completions arrive: in time, late, again, in one batch."""
        if not self.prepared:
            return self.proceed(some[0])
        self.complete([self.one_of(self.prepared[-RECENT:], pick) for pick in some])

    @step(some=several, count=st.integers(0, 3))
    def finish(self, some: list[int], count: int) -> None:
        """Workers finish and say so at once."""
        self.complete(self.completions(self.pick_some(some), count))

    @step(worker=picks, some=several, count=st.integers(0, 3))
    def complete_and_claim(self, worker: int, some: list[int], count: int) -> None:
        """A worker finishes, and goes on with what comes next."""
        done = self.completions(self.pick_some(some), count)
        self.complete(done, WORKERS[worker % 3])

    @step(pick=picks, count=st.integers(0, 3))
    def adopt(self, pick: int, count: int) -> None:
        """Somebody finds a receipt: the task is done, if nobody has it; now or a little later."""
        rows = [row for row in self.oracle.rows.values() if pick % 8 == 0 or row.state in CLAIMABLE]
        if not rows:
            return self.proceed(pick)
        row = rows[pick // 8 % len(rows)]
        seen = self.oracle.job_of(row.id)
        assert seen is not None
        place = seen.job.key, row.step, row.index, row.key, row.chunk
        lease = Lease(row.id, row.fence, row.attempts + 1, *place)
        done = completion(self.ledger, seen.job, lease, chunks(count), files=count % 2)
        self.prepared.append(replace(done, adopted=True, by_receipt=True))
        if pick % 3:
            self.complete(self.prepared[-1:])

    @step(pick=picks, count=st.integers(0, 3), other=st.booleans(), size=st.integers(1, 4))
    def expand(self, pick: int, count: int, other: bool, size: int) -> None:
        """Whoever has a plan adds a page of what it found, and may vanish before the others."""
        plans = [one for one in self.leases[-RECENT:] if self.is_held(one) and self.is_plan(one)]
        if not plans:
            return self.proceed(pick)
        lease = plans[pick % len(plans)]
        seen = self.oracle.job_of(lease.task_id)
        assert seen is not None
        found = chunks(count, salt="other" if other else "")
        done = completion(self.ledger, seen.job, lease, found)
        first = pick // 4 % max(1, len(done.tasks))
        with self.change(seen.job.key):
            page = done.tasks[first : first + size]
            assert self.ledger.expand(lease.task_id, lease.fence, lease.key, page)
        gone = self.leases[pick % len(self.leases)]
        row = self.oracle.rows.get(gone.task_id)
        if row is None or (row.fence, row.key) != (gone.fence, gone.key):
            with self.change():
                assert not self.ledger.expand(gone.task_id, gone.fence, gone.key, done.tasks)

    @step(pick=picks, permanent=st.booleans(), delay_s=st.sampled_from([0.0, 5.0, 300.0]))
    def fail(self, pick: int, permanent: bool, delay_s: float) -> None:
        lease = self.pick(pick)
        if lease is None:
            return self.proceed(pick)
        held = self.is_held(lease)
        failure = Failure(lease.task_id, lease.fence, "Broken", "it broke", permanent, delay_s)
        with self.change(*(self.jobs_of([lease.task_id]) if held else ())):
            (state,) = self.ledger.fail([failure])
            if held:
                last = permanent or self.oracle.is_last(lease.task_id)
                assert state is (TaskState.FAILED if last else TaskState.RETRYING)
                self.oracle.ready_s[lease.task_id] = self.clock.monotonic_s() + delay_s
            else:
                assert state in (None, TaskState.FAILED, TaskState.RETRYING)

    @step(worker=picks, some=several)
    def renew(self, worker: int, some: list[int]) -> None:
        # One beat a task: an answer by task cannot tell two fences of one task apart.
        leases = list({lease.task_id: lease for lease in self.pick_some(some)}.values())
        kept = [lease for lease in leases if self.is_held(lease)]
        gone = {lease.task_id for lease in leases if lease not in kept}
        told = {id for id in gone if self._is_cancelled(id)}
        with self.change(*self.jobs_of(lease.task_id for lease in kept)):
            heartbeats = [Heartbeat(lease.task_id, lease.fence, 0.5) for lease in leases]
            answer = self.ledger.renew(WORKERS[worker % 3], heartbeats, lease_ttl_s=TTL_S)
            assert (answer.lost, answer.cancelled) == (gone - told, told)
            for lease in kept:
                if lease.task_id not in self.oracle.deferred:
                    self.oracle.expires_s[lease.task_id] = self.clock.monotonic_s() + TTL_S
        for lease in kept:
            assert self.oracle.rows[lease.task_id].state is TaskState.RUNNING

    def _is_cancelled(self, task_id: int) -> bool:
        seen = self.oracle.job_of(task_id)
        return seen is not None and (
            seen.rows[task_id].state is TaskState.CANCELLED
            or seen.shown.state is JobState.CANCELLED
        )

    @step(some=several)
    def release(self, some: list[int]) -> None:
        leases = self.pick_some(some)
        before = self.oracle.rows
        held = {
            lease.task_id
            for lease in leases
            if self.is_held(lease) and before[lease.task_id].state in HELD
        }
        with self.change(*self.jobs_of(held)):
            given_back = [(lease.task_id, lease.fence) for lease in leases]
            assert self.ledger.release(given_back, reason="drain") == len(held)
            self.oracle.deferred -= held
        for id in held:
            row = self.oracle.rows[id]
            assert row.state is TaskState.ABANDONED
            assert (row.attempts, row.lost) == (before[id].attempts, before[id].lost)

    @step(pick=picks, timeout_s=st.sampled_from([10.0, 600.0]))
    def defer(self, pick: int, timeout_s: float) -> None:
        lease = self.pick(pick)
        if lease is None:
            return self.proceed(pick)
        held = self.is_held(lease) and self.oracle.rows[lease.task_id].state in HELD
        token = f"token{self.turn}"
        with self.change(*(self.jobs_of([lease.task_id]) if held else ())):
            place = lease.task_id, lease.fence
            assert self.ledger.defer(*place, token=token, timeout_s=timeout_s) == held
            found = self.ledger.deferred(token)
            waiting = None if found is None or not found.is_waiting else found.row
            assert (waiting and (waiting.id, waiting.fence)) == (place if held else None)
            if held:
                self.oracle.expires_s[lease.task_id] = self.clock.monotonic_s() + timeout_s
                self.oracle.deferred.add(lease.task_id)

    @step(dead=st.sets(st.sampled_from(WORKERS), max_size=1), pick=picks)
    def rescue(self, dead: set[str], pick: int) -> None:
        if not self.any_in(*HELD):
            return self.proceed(pick)
        self.rescue_dead(dead)

    def rescue_dead(self, dead: Collection[str]) -> None:
        before = self.oracle.rows
        held = {id: row for id, row in before.items() if row.state in HELD}
        workers = {row.worker for row in held.values() if row.worker is not None}
        assert set(self.ledger.workers()) == workers
        gone = self.oracle.expired() | {id for id, row in held.items() if row.worker in dead}
        last = {id for id in gone if self.oracle.is_lost_for_good(id)}
        counts = {
            id: (row.attempts + 1, row.lost)
            if id in self.oracle.deferred
            else (row.attempts, row.lost + 1)
            for id, row in held.items()
        }
        with self.change(*self.oracle.jobs):
            changed = self.ledger.rescue(dead)
            self.oracle.deferred -= gone
        after = self.oracle.rows
        assert (changed > 0) == (after != before)
        for id, row in held.items():
            if after[id].state is TaskState.CANCELLED:
                continue  # a plan it waits for has failed in the same sweep
            if id in gone:
                assert after[id].state is (TaskState.FAILED if id in last else TaskState.ABANDONED)
                assert (after[id].attempts, after[id].lost) == counts[id]
            else:
                assert after[id] == row, "a live lease was touched"

    @step(
        seconds=st.sampled_from([1.0, 30.0, 60.0, 301.0, 601.0]),
        jump_h=st.integers(-1, 1),
        sweep=st.booleans(),
    )
    def time_passes(self, seconds: float, jump_h: int, sweep: bool) -> None:
        with self.change():
            self.clock.advance(seconds)
            self.clock.jump_wall(3600.0 * jump_h)
        if sweep:
            self.rescue_dead(())
