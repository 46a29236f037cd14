"""The rules of the stateful test that users play, and disks that lose bytes."""

from __future__ import annotations

import hypothesis.strategies as st

from intermission.model import JobState, TaskState
from intermission.testing.machine.base import JOBS_MAX, Machine, picks, step
from intermission.testing.oracle import ENDED, STOPPED


class Users(Machine):
    """Submitting, cancelling, trying again, forgetting, and lost bytes."""

    @step(slot=st.integers(0, JOBS_MAX - 1), shape=picks, priority=st.integers(-1, 1))
    def submit(self, slot: int, shape: int, priority: int) -> None:
        key = f"job{slot}"
        if key in self.oracle.jobs and not self.seldom():
            return self.proceed(shape)
        self.submit_job(key, shape, priority)

    @step(pick=picks)
    def cancel(self, pick: int) -> None:
        if not self.seldom():
            return self.proceed(pick)
        key = self.key(pick)
        live = self.oracle.jobs[key].shown.state not in ENDED
        with self.change(key):
            if live:
                self.oracle.cancelled_by_hand.add(key)
            assert self.ledger.cancel(key, reason="not wanted") == live

    @step(pick=picks)
    def mark_draining(self, pick: int) -> None:
        if not self.seldom():
            return self.proceed(pick)
        key = self.key(pick)
        legal = self.oracle.jobs[key].shown.state in (JobState.PENDING, JobState.RUNNING)
        with self.change(key):
            assert self.ledger.mark(key, JobState.DRAINING, reason="spot notice") == legal

    @step(pick=picks, some=st.none() | st.lists(picks, max_size=3))
    def retry(self, pick: int, some: list[int] | None) -> None:
        if not self.any_in(*STOPPED):
            return self.proceed(pick)
        key = self.key(pick)
        before = self.oracle.jobs[key].rows
        stopped = [id for id, row in before.items() if row.state in STOPPED]
        asked = stopped if some is None else [stopped[n % len(stopped)] for n in some if stopped]
        with self.change(key):
            changed = self.ledger.retry(key, None if some is None else asked)
        seen = self.oracle.jobs[key]
        assert changed == sum(row != before[id] for id, row in seen.rows.items())
        for id in asked:
            row = seen.rows[id]
            stays = seen.is_doomed(row)
            assert (row.state in STOPPED) == stays, f"{row} should have been tried again"
            assert stays or row.attempts == 0

    @step(some=st.lists(picks, min_size=1, max_size=2))
    def invalidate(self, some: list[int]) -> None:
        if not self.any_in(TaskState.DONE):
            return self.proceed(some[0])
        before = self.oracle.rows
        done = sorted(id for id, row in before.items() if row.state is TaskState.DONE)
        lost = {done[pick % len(done)] for pick in some}
        with self.change(*self.jobs_of(lost)):
            spoiled = self.ledger.invalidate(lost, reason="its bytes are gone")
        after = self.oracle.rows
        back = {id for id in after if after[id].fence > before[id].fence}
        assert {row.id for row in spoiled} == back  # others may be told another reason
        for id in lost:
            assert after[id].state is not TaskState.DONE

    @step(pick=picks)
    def delete(self, pick: int) -> None:
        if not self.seldom():
            return self.proceed(pick)
        self.forget_job(self.key(pick))
