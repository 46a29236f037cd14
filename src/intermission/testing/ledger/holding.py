"""The contract: keeping a lease, losing it, and handing it to an outside event."""

from __future__ import annotations

from intermission.model import Heartbeat, Reason, Renewal, TaskState
from intermission.testing.jobs import fan_job, line_job, submit
from intermission.testing.ledger.suite import (
    TTL_S,
    FakeClock,
    Ledger,
    Suite,
    fail,
    finish,
    heartbeat,
    job_row,
    planned,
    row,
    take,
    take_one,
)

KEPT = Renewal()


def waits_for(ledger: Ledger, token: str) -> int | None:
    """The task that waits for a token."""
    found = ledger.deferred(token)
    return found.row.id if found is not None and found.is_waiting else None


def ended_as(ledger: Ledger, token: str) -> tuple[TaskState, str | None]:
    found = ledger.deferred(token)
    assert found is not None
    return found.row.state, found.row.code


class Holding(Suite):
    def test_a_beat_makes_a_leased_task_running(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        assert heartbeat(ledger, lease, progress=0.25) == KEPT
        shown = row(ledger, made, "fetch")
        assert (shown.state, shown.progress, shown.worker) == (TaskState.RUNNING, 0.25, "w1")
        assert heartbeat(ledger, lease, progress=0.5) == KEPT
        assert row(ledger, made, "fetch").progress == 0.5

    def test_progress_is_told_now_and_then(self, ledger: Ledger, clock: FakeClock) -> None:
        """At most once in 5 s, and only when it is another hundredth than the last one told."""
        submit(ledger, line_job())
        lease = take_one(ledger)
        waits_s = ((0.0, 0.004), (1.0, 0.25), (1.0, 0.3), (3.9, 0.4), (0.1, 0.41), (9.0, 0.413))
        for wait_s, progress in waits_s:
            clock.advance(wait_s)
            heartbeat(ledger, lease, progress=progress)
        events = [event for event in ledger.events() if event.progress is not None]
        assert [event.progress for event in events] == [0.25, 0.41]
        assert events[1].at_ms - events[0].at_ms == 5000
        assert [(e.was, e.now, e.task, e.worker, e.fence) for e in events] == [
            ("running", "running", "fetch", "w1", lease.fence)
        ] * 2

    def test_progress_is_told_of_every_attempt(self, ledger: Ledger, clock: FakeClock) -> None:
        submit(ledger, line_job())
        for _ in range(2):
            lease = take_one(ledger)
            heartbeat(ledger, lease, progress=0.8)
            clock.jump_wall(-3600)  # it keeps nobody silent
            heartbeat(ledger, lease, progress=0.9)
            clock.advance(TTL_S)
            heartbeat(ledger, lease, progress=0.1)  # it does not go back
            ledger.release([(lease.task_id, lease.fence)], reason="a drain")
        told = [e.progress for e in ledger.events() if e.progress is not None]
        assert told == [0.8, 0.9, 0.8, 0.9]

    def test_progress_of_somebody_else_is_not_told(self, ledger: Ledger, clock: FakeClock) -> None:
        submit(ledger, line_job())
        late = take_one(ledger)
        clock.advance(TTL_S)
        ledger.rescue()
        lease = take_one(ledger, worker="w2")
        heartbeat(ledger, lease, worker="w2")
        heartbeat(ledger, late, progress=0.5)
        assert not [event for event in ledger.events() if event.progress is not None]

    def test_a_beat_extends_the_lease(self, ledger: Ledger, clock: FakeClock) -> None:
        submit(ledger, line_job())
        lease = take_one(ledger)
        for _ in range(5):
            clock.advance(TTL_S - 1)
            assert heartbeat(ledger, lease) == KEPT
            assert ledger.rescue() == 0
        clock.advance(TTL_S)
        assert ledger.rescue() == 1

    def test_a_beat_extends_its_own_lease_alone(self, ledger: Ledger, clock: FakeClock) -> None:
        made = planned(ledger, fan_job(), 2)
        first, _ = take(ledger)
        clock.advance(30)
        heartbeat(ledger, first)
        clock.advance(30)
        assert ledger.rescue() == 1
        assert row(ledger, made, "hear[0]").state is TaskState.RUNNING
        assert row(ledger, made, "hear[1]").state is TaskState.ABANDONED

    def test_no_beats_no_answer(self, ledger: Ledger) -> None:
        assert ledger.renew("w1", [], lease_ttl_s=TTL_S) == KEPT

    def test_a_late_beat_nobody_contested_is_accepted(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        submit(ledger, line_job())
        lease = take_one(ledger)
        clock.advance(TTL_S * 10)
        assert heartbeat(ledger, lease) == KEPT
        assert ledger.rescue() == 0

    def test_a_late_beat_takes_an_abandoned_task_back(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        clock.advance(TTL_S)
        ledger.rescue()
        assert heartbeat(ledger, lease) == KEPT
        shown = row(ledger, made, "fetch")
        assert (shown.state, shown.worker, shown.fence) == (TaskState.RUNNING, "w1", lease.fence)
        assert take(ledger, worker="w2") == []
        assert ledger.rescue() == 0
        assert finish(ledger, made, lease) == [True]

    def test_a_lease_another_took_over_is_lost(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, line_job())
        old = take_one(ledger)
        clock.advance(TTL_S)
        ledger.rescue()
        new = take_one(ledger, worker="w2")
        assert heartbeat(ledger, old) == Renewal(lost=frozenset({old.task_id}))
        shown = row(ledger, made, "fetch")
        assert (shown.state, shown.worker, shown.fence) == (TaskState.LEASED, "w2", new.fence)
        assert heartbeat(ledger, new, worker="w2") == KEPT

    def test_a_lease_whose_task_ended_is_lost(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 3)
        done, retrying, failed = take(ledger)
        finish(ledger, made, done)
        fail(ledger, retrying, delay_s=9)
        fail(ledger, failed, permanent=True)
        lost = frozenset({done.task_id, retrying.task_id, failed.task_id})
        assert heartbeat(ledger, done, retrying, failed) == Renewal(lost=lost)

    def test_a_lease_of_no_task_at_all_is_lost(self, ledger: Ledger) -> None:
        answer = ledger.renew("w1", [Heartbeat(987654, 1)], lease_ttl_s=TTL_S)
        assert answer == Renewal(lost=frozenset({987654}))

    def test_a_cancelled_job_is_told_to_its_holders(self, ledger: Ledger, clock: FakeClock) -> None:
        made = planned(ledger, fan_job(), 2)
        stale = take_one(ledger)
        clock.advance(TTL_S)
        ledger.rescue()
        current = take(ledger, worker="w2")
        assert ledger.cancel(made.key, reason="no longer wanted")
        ids = {lease.task_id for lease in current}
        assert heartbeat(ledger, *current, worker="w2") == Renewal(cancelled=frozenset(ids))
        assert heartbeat(ledger, stale) == Renewal(cancelled=frozenset({stale.task_id}))

    def test_a_cancelled_job_is_told_to_whoever_ended_before_it(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        done = take_one(ledger)
        finish(ledger, made, done)
        ledger.cancel(made.key, reason="no longer wanted")
        assert heartbeat(ledger, done) == Renewal(cancelled=frozenset({done.task_id}))

    def test_each_beat_has_its_own_answer(self, ledger: Ledger, clock: FakeClock) -> None:
        made = planned(ledger, fan_job(), 3)
        other = submit(ledger, line_job(key="other"))
        kept, lost, done = take(ledger, jobs=[made.key])
        gone = take_one(ledger, jobs=[other.key])
        finish(ledger, made, done)
        ledger.cancel(other.key, reason="no")
        clock.advance(TTL_S - 1)
        heartbeat(ledger, kept)
        clock.advance(1)
        ledger.rescue()
        take(ledger, worker="w2", jobs=[made.key])
        answer = heartbeat(ledger, kept, lost, done, gone, progress=0.5)
        assert answer == Renewal(
            lost=frozenset({lost.task_id, done.task_id}), cancelled=frozenset({gone.task_id})
        )
        assert row(ledger, made, "hear[0]").progress == 0.5

    def test_the_wall_clock_decides_nothing_about_leases(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        submit(ledger, line_job())
        lease = take_one(ledger)
        clock.jump_wall(3600)
        assert ledger.rescue() == 0
        clock.jump_wall(-7200)
        clock.advance(TTL_S - 1)
        assert ledger.rescue() == 0
        clock.advance(1)
        assert ledger.rescue() == 1
        assert take_one(ledger).fence == lease.fence + 1

    def test_workers_are_those_who_hold_leases(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 5)
        assert ledger.workers() == []
        leases = [take_one(ledger, worker=name) for name in ("w1", "w2", "w2", "w3", "w4")]
        assert sorted(ledger.workers()) == ["w1", "w2", "w3", "w4"]
        finish(ledger, made, leases[0])
        ledger.release([(leases[3].task_id, leases[3].fence)], reason="drain")
        heartbeat(ledger, leases[1], worker="w2")
        fail(ledger, leases[4])
        assert ledger.workers() == ["w2"]

    def test_a_deferred_task_runs_without_a_worker(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, line_job())
        finish(ledger, made, take_one(ledger))
        lease = take_one(ledger)
        assert ledger.defer(lease.task_id, lease.fence, token="call-7", timeout_s=600)
        shown = row(ledger, made, "pack")
        assert (shown.state, shown.worker, shown.fence) == (TaskState.RUNNING, None, lease.fence)
        assert ledger.workers() == []
        assert waits_for(ledger, "call-7") == lease.task_id
        found = ledger.deferred("call-7")
        assert found is not None
        assert (found.job_key, found.fence, found.row) == (made.key, lease.fence, shown)
        assert ledger.rescue(dead=["w1"]) == 0
        clock.advance(599)
        assert ledger.rescue() == 0
        assert waits_for(ledger, "call-7") == lease.task_id

    def test_an_outside_event_completes_a_deferred_task(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        ledger.defer(lease.task_id, lease.fence, token="t", timeout_s=600)
        assert waits_for(ledger, "t") == lease.task_id
        assert finish(ledger, made, lease) == [True]
        assert waits_for(ledger, "t") is None
        assert ended_as(ledger, "t") == (TaskState.DONE, None)
        assert take_one(ledger).step == "pack"

    def test_a_deferral_times_out(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        ledger.defer(lease.task_id, lease.fence, token="t", timeout_s=600)
        clock.advance(600)
        assert ledger.rescue() == 1
        assert row(ledger, made, "fetch").state is TaskState.ABANDONED
        assert waits_for(ledger, "t") is None
        assert ended_as(ledger, "t") == (TaskState.ABANDONED, Reason.DEFERRAL_TIMED_OUT)
        again = take_one(ledger)
        assert again.fence > lease.fence
        assert waits_for(ledger, "t") is None
        assert finish(ledger, made, lease) == [False]
        ledger.defer(again.task_id, again.fence, token="t", timeout_s=600)
        assert waits_for(ledger, "t") == lease.task_id

    def test_a_deferral_ends_with_its_attempt(self, ledger: Ledger) -> None:
        submit(ledger, line_job())
        first = take_one(ledger)
        ledger.defer(first.task_id, first.fence, token="first", timeout_s=600)
        ledger.release([(first.task_id, first.fence)], reason="drain")
        assert waits_for(ledger, "first") is None
        second = take_one(ledger)
        ledger.defer(second.task_id, second.fence, token="second", timeout_s=600)
        assert fail(ledger, second) is TaskState.RETRYING
        assert waits_for(ledger, "second") is None
        heartbeat(ledger, take_one(ledger))
        assert [waits_for(ledger, token) for token in ("first", "second")] == [None, None]

    def test_a_beat_that_crosses_a_deferral_does_not_shorten_it(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        submit(ledger, line_job())
        lease = take_one(ledger)
        ledger.defer(lease.task_id, lease.fence, token="t", timeout_s=600)
        assert heartbeat(ledger, lease) == KEPT
        clock.advance(599)
        assert ledger.rescue(dead=["w1"]) == 0
        assert waits_for(ledger, "t") == lease.task_id

    def test_only_a_holder_defers(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        clock.advance(TTL_S)
        ledger.rescue()
        assert not ledger.defer(lease.task_id, lease.fence, token="a", timeout_s=9)
        new = take_one(ledger)
        assert not ledger.defer(lease.task_id, lease.fence, token="b", timeout_s=9)
        finish(ledger, made, new)
        assert not ledger.defer(new.task_id, new.fence, token="c", timeout_s=9)
        assert [ledger.deferred(token) for token in "abc"] == [None, None, None]

    def test_of_two_tasks_under_one_token_the_one_that_waits_is_found(self, ledger: Ledger) -> None:
        jobs = [submit(ledger, line_job(key=key)) for key in ("one", "two")]
        leases = [take_one(ledger), take_one(ledger)]
        for lease in leases:
            ledger.defer(lease.task_id, lease.fence, token="t", timeout_s=600)
        first = next(it for it in leases if it.task_id == waits_for(ledger, "t"))
        (other,) = (it for it in leases if it is not first)
        finish(ledger, next(job for job in jobs if job.key == first.job_key), first)
        assert waits_for(ledger, "t") == other.task_id

    def test_no_deferral_outlives_its_job(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        ledger.defer(lease.task_id, lease.fence, token="t", timeout_s=600)
        ledger.cancel(made.key, reason="no")
        assert waits_for(ledger, "t") is None
        assert ended_as(ledger, "t") == (TaskState.CANCELLED, Reason.CANCELLED)
        assert finish(ledger, made, lease) == [False]
        assert job_row(ledger, made).total(TaskState.CANCELLED) == 2
        assert ledger.delete(made.key)
        assert ledger.deferred("t") is None
