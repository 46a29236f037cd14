"""The contract: leases given back and leases that died."""

from __future__ import annotations

from intermission.model import LOST_MAX, Failure, Heartbeat, JobState, Reason, Renewal, TaskState
from intermission.testing.jobs import fan_job, job, line_job, step, submit
from intermission.testing.ledger.suite import (
    TTL_S,
    FakeClock,
    Ledger,
    Suite,
    events_of,
    fail,
    finish,
    heartbeat,
    job_row,
    planned,
    row,
    run,
    states_of,
    take,
    take_one,
)

A, D, F, X = TaskState.ABANDONED, TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED


class Recovering(Suite):
    def test_a_released_task_is_claimable_at_once_and_not_counted(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 2)
        leased, running = take(ledger)
        heartbeat(ledger, running)
        leases = iter([(leased.task_id, leased.fence), (running.task_id, running.fence)])
        assert ledger.release(leases, reason="spot notice") == 2
        assert [row(ledger, made, f"hear[{n}]").state for n in (0, 1)] == [A, A]
        assert [row(ledger, made, f"hear[{n}]").attempts for n in (0, 1)] == [0, 0]
        again = take(ledger, worker="w2")
        assert [lease.attempt for lease in again] == [1, 1]
        assert [lease.fence for lease in again] == [leased.fence + 1, running.fence + 1]

    def test_drains_never_use_up_the_attempts(self, ledger: Ledger) -> None:
        made = submit(ledger, job(step("a", attempts=2)))
        for _ in range(5):
            lease = take_one(ledger)
            assert ledger.release([(lease.task_id, lease.fence)], reason="drain") == 1
        assert fail(ledger, take_one(ledger)) is TaskState.RETRYING
        assert row(ledger, made, "a").attempts == 1

    def test_a_drain_gives_back_its_own_attempt_alone(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        for _ in range(2):
            fail(ledger, take_one(ledger))
        lease = take_one(ledger)
        ledger.release([(lease.task_id, lease.fence)], reason="drain")
        assert row(ledger, made, "fetch").attempts == 2

    def test_only_a_holder_releases(self, ledger: Ledger, clock: FakeClock) -> None:
        made = planned(ledger, fan_job(), 3)
        old, done, failed = take(ledger)
        finish(ledger, made, done)
        fail(ledger, failed, delay_s=9)
        clock.advance(TTL_S)
        ledger.rescue()
        new = take_one(ledger, worker="w2")
        stale = [(lease.task_id, lease.fence) for lease in (old, done, failed)]
        before = (ledger.events(), list(ledger.tasks(made.key)))
        assert ledger.release([*stale, (98765, 1)], reason="drain") == 0
        assert (ledger.events(), list(ledger.tasks(made.key))) == before
        assert ledger.release([(new.task_id, new.fence)] * 2, reason="drain") == 1
        assert ledger.release([(new.task_id, new.fence)], reason="drain") == 0

    def test_a_lease_ends_at_its_time_and_not_before(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger, lease_ttl_s=30)
        clock.advance(29.5)
        assert ledger.rescue() == 0
        assert take(ledger, worker="w2") == []
        clock.advance(0.5)
        assert ledger.rescue() == 1
        assert row(ledger, made, "fetch").state is A
        assert ledger.rescue() == 0
        again = take_one(ledger, worker="w2")
        assert (again.attempt, again.fence) == (1, lease.fence + 1)

    def test_an_expired_lease_is_not_handed_out_before_it_is_rescued(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        clock.advance(TTL_S * 2)
        assert take(ledger, worker="w2") == []
        assert finish(ledger, made, lease) == [True]

    def test_the_leases_of_a_dead_worker_end_at_once(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 3)
        for worker in ("dead", "alive", "dead"):
            take_one(ledger, worker=worker)
        assert ledger.rescue(dead=["nobody"]) == 0
        assert ledger.rescue(dead={"dead", "nobody"}) == 2
        states = [row(ledger, made, f"hear[{n}]").state for n in range(3)]
        assert states == [A, TaskState.LEASED, A]

    def test_a_vanished_worker_costs_no_attempt(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, job(step("a", attempts=2)))
        for _ in range(3):
            assert take_one(ledger).attempt == 1
            clock.advance(TTL_S)
            assert ledger.rescue() == 1
        shown = row(ledger, made, "a")
        assert (shown.state, shown.attempts, shown.lost, shown.code) == (A, 0, 3, Reason.LOST)
        assert shown.message == "the worker w1 vanished"
        assert fail(ledger, take_one(ledger)) is TaskState.RETRYING
        assert take_one(ledger).attempt == 2

    def test_from_the_third_on_a_task_that_lost_its_workers_runs_alone(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = planned(ledger, fan_job(), 2)
        finish(ledger, made, take(ledger)[1])
        alone: list[bool] = []
        for _ in range(3):
            clock.advance(TTL_S)
            assert ledger.rescue() == 1
            alone.append(take_one(ledger).alone)
        assert alone == [False, True, True]

    def test_a_task_that_kills_every_worker_fails_in_the_end_and_names_them(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = planned(ledger, fan_job(attempts=2), 2)
        finish(ledger, made, take(ledger, worker="w0")[1])
        for n in range(1, LOST_MAX + 1):
            clock.advance(TTL_S)
            assert ledger.rescue() == 1
            shown = row(ledger, made, "hear[0]")
            assert shown.lost == n
            if n < LOST_MAX:
                take_one(ledger, worker=f"w{n}")
        assert (shown.state, shown.attempts, shown.code) == (F, 0, Reason.LOST)
        assert shown.error == "WorkerLost"
        for n in range(LOST_MAX):
            assert f"w{n}" in (shown.message or "")
        assert take(ledger) == []
        join = row(ledger, made, "join")
        assert (join.state, join.message) == (X, "hear[0] failed")
        assert job_row(ledger, made).state is JobState.FAILED

    def test_what_was_claimed_and_not_begun_has_used_nothing(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = planned(ledger, fan_job(), 3)
        for n in range(1, 4):
            silent, waits, begun = take(ledger, begin=False)
            beats = [
                Heartbeat(waits.task_id, waits.fence, begun=False),
                Heartbeat(begun.task_id, begun.fence),
            ]
            assert ledger.renew("w1", beats, lease_ttl_s=TTL_S) == Renewal()
            states = [row(ledger, made, f"hear[{n}]").state for n in range(3)]
            assert states == [TaskState.LEASED, TaskState.LEASED, TaskState.RUNNING]
            clock.advance(TTL_S)
            assert ledger.rescue() == 3
            assert [row(ledger, made, f"hear[{n}]").lost for n in range(3)] == [0, 0, n]
        leases = take(ledger)
        assert [lease.alone for lease in leases] == [False, False, True]
        assert silent.attempt == 1

    def test_a_deferral_that_times_out_is_told_as_such_and_costs_an_attempt(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, job(step("a", attempts=2)))
        for attempt in (1, 2):
            lease = take_one(ledger)
            assert lease.attempt == attempt
            ledger.defer(lease.task_id, lease.fence, token=f"t{attempt}", timeout_s=600)
            clock.advance(600)
            assert ledger.rescue() == 1
            shown = row(ledger, made, "a")
            assert (shown.attempts, shown.lost) == (attempt, 0)
            assert (shown.code, shown.error) == (Reason.DEFERRAL_TIMED_OUT, "DeferralTimedOut")
            assert "vanished" not in (shown.message or "")
            assert shown.state is (A if attempt == 1 else F)

    def test_a_retry_by_hand_forgets_what_was_lost(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, job(step("a")))
        for _ in range(LOST_MAX):
            take_one(ledger)
            clock.advance(TTL_S)
            ledger.rescue()
        assert ledger.retry(made.key) == 1
        lease = take_one(ledger)
        assert (lease.attempt, lease.alone, row(ledger, made, "a").lost) == (1, False, 0)

    def test_a_late_end_after_the_last_loss_is_refused(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, job(step("a")))
        for _ in range(LOST_MAX):
            lease = take_one(ledger)
            clock.advance(TTL_S)
            ledger.rescue()
        assert finish(ledger, made, lease) == [False]
        assert heartbeat(ledger, lease).lost == {lease.task_id}
        assert row(ledger, made, "a").state is F

    def test_an_end_has_its_code_in_the_events(self, ledger: Ledger, clock: FakeClock) -> None:
        submit(ledger, job(step("a", attempts=3)))
        lease = take_one(ledger)
        clock.advance(TTL_S)
        ledger.rescue()
        lease = take_one(ledger)
        ledger.release([(lease.task_id, lease.fence)], reason=Reason.DRAINED, message="SIGTERM")
        lease = take_one(ledger)
        heartbeat(ledger, lease)
        failure = Failure(lease.task_id, lease.fence, "TimedOut", "too slow", code=Reason.TIMED_OUT)
        ledger.fail([failure])
        events = [event for event in ledger.events() if event.task_id == lease.task_id]
        assert [(event.now, event.code, event.message) for event in events if event.code] == [
            ("abandoned", Reason.LOST, "the worker w1 vanished"),
            ("abandoned", Reason.DRAINED, "SIGTERM"),
            ("retrying", Reason.TIMED_OUT, "too slow"),
        ]

    def test_rescue_leaves_ended_tasks_alone(self, ledger: Ledger, clock: FakeClock) -> None:
        made = planned(ledger, fan_job(), 4)
        done, failed, retrying, released = take(ledger)
        finish(ledger, made, done)
        fail(ledger, failed, permanent=True)
        fail(ledger, retrying, delay_s=9)
        ledger.release([(released.task_id, released.fence)], reason="drain")
        before = (ledger.events(), states_of(ledger, made))
        clock.advance(TTL_S * 3)
        assert ledger.rescue(dead=["w1"]) == 0
        assert (ledger.events(), states_of(ledger, made)) == before

    def test_a_rescued_task_has_its_steps_in_the_events(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, job(step("a")))
        lease = take_one(ledger)
        heartbeat(ledger, lease)
        clock.advance(TTL_S)
        ledger.rescue()
        heartbeat(ledger, lease)
        finish(ledger, made, lease)
        assert events_of(ledger, lease.task_id) == [
            ("pending", "leased"),
            ("leased", "running"),
            ("running", "abandoned"),
            ("abandoned", "running"),
            ("running", "done"),
        ]

    def test_a_job_goes_on_after_every_worker_died(self, ledger: Ledger, clock: FakeClock) -> None:
        made = planned(ledger, fan_job(), 3)
        take(ledger)
        clock.advance(TTL_S)
        assert ledger.rescue() == 3
        assert run(ledger, made) == ["hear[0]", "hear[1]", "hear[2]", "join"]
        assert job_row(ledger, made).state is JobState.DONE
