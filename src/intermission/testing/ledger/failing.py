"""The contract: failed attempts, and what a task that failed for good takes with it."""

from __future__ import annotations

from intermission.model import Failure, JobState, TaskState
from intermission.testing.jobs import chunks, fan_job, job, line_job, mapped, plan, step, submit
from intermission.testing.ledger.suite import (
    TTL_S,
    FakeClock,
    Ledger,
    Suite,
    events_of,
    fail,
    finish,
    job_row,
    planned,
    row,
    run,
    states_of,
    take,
    take_named,
    take_one,
)

D, F, X = TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED


class Failing(Suite):
    def test_an_attempt_that_failed_is_told_and_tried_again(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        clock.advance(2)
        assert fail(ledger, lease, message="the network went away") is TaskState.RETRYING
        shown = row(ledger, made, "fetch")
        assert (shown.state, shown.error, shown.message) == (
            TaskState.RETRYING,
            "Broken",
            "the network went away",
        )
        assert shown.ended_ms == clock.now_ms()
        again = take_one(ledger)
        assert (again.attempt, again.fence) == (2, lease.fence + 1)
        claimed = row(ledger, made, "fetch")
        assert (claimed.ended_ms, claimed.ready_ms) == (None, None)
        finish(ledger, made, again)
        done = row(ledger, made, "fetch")
        assert (done.error, done.message) == (None, None)
        assert run(ledger, made) == ["pack"]
        assert job_row(ledger, made).state is JobState.DONE

    def test_attempts_are_total_runs(self, ledger: Ledger) -> None:
        made = submit(ledger, job(step("a", attempts=3)))
        states = [fail(ledger, take_one(ledger)) for _ in range(3)]
        assert states == [TaskState.RETRYING, TaskState.RETRYING, F]
        assert take(ledger) == []
        assert row(ledger, made, "a").attempts == 3
        assert job_row(ledger, made).state is JobState.FAILED

    def test_a_step_with_one_attempt_fails_at_once(self, ledger: Ledger) -> None:
        submit(ledger, job(step("a", attempts=1)))
        assert fail(ledger, take_one(ledger)) is F

    def test_a_permanent_failure_is_not_tried_again(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        assert fail(ledger, take_one(ledger), permanent=True, message="no such file") is F
        shown = row(ledger, made, "fetch")
        assert (shown.state, shown.error, shown.message) == (F, "Broken", "no such file")
        assert take(ledger) == []

    def test_each_failure_has_its_own_answer(self, ledger: Ledger, clock: FakeClock) -> None:
        planned(ledger, fan_job(), 3)
        old = take(ledger)
        clock.advance(TTL_S)
        ledger.rescue()
        new = take_one(ledger, worker="w2")
        failures = [
            Failure(old[0].task_id, old[0].fence, "E", "stale"),
            Failure(new.task_id, new.fence, "E", "current"),
            Failure(old[1].task_id, old[1].fence, "E", "late, but nobody else has it"),
            Failure(old[2].task_id, old[2].fence, "E", "for good", permanent=True),
            Failure(98765, 1, "E", "no such task"),
        ]
        retrying = TaskState.RETRYING
        assert ledger.fail(failures) == [None, retrying, retrying, F, None]

    def test_a_stale_failure_changes_nothing(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, line_job())
        old = take_one(ledger)
        clock.advance(TTL_S)
        ledger.rescue()
        new = take_one(ledger, worker="w2")
        before = (ledger.events(), list(ledger.tasks(made.key)))
        assert fail(ledger, old, permanent=True) is None
        assert (ledger.events(), list(ledger.tasks(made.key))) == before
        finish(ledger, made, new)
        assert fail(ledger, new, permanent=True) is None
        assert row(ledger, made, "fetch").state is D

    def test_a_repeated_failure_changes_nothing(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 2)
        retrying, failed = take(ledger)
        fail(ledger, retrying, delay_s=60)
        fail(ledger, failed, permanent=True)
        before = (ledger.events(), list(ledger.tasks(made.key)))
        for lease, state in ((retrying, TaskState.RETRYING), (failed, F)):
            assert fail(ledger, lease, permanent=True) in (None, state)
        assert (ledger.events(), list(ledger.tasks(made.key))) == before

    def test_what_needs_a_failed_task_is_cancelled_and_told_why(self, ledger: Ledger) -> None:
        made = job(step("a"), step("b", one=["a"]), step("c", one=["b"]), step("d"))
        submit(ledger, made)
        a, d = take(ledger)
        fail(ledger, a, permanent=True)
        assert states_of(ledger, made) == {"a": F, "b": X, "c": X, "d": TaskState.LEASED}
        assert row(ledger, made, "b").message == "a failed"
        assert row(ledger, made, "c").message == "a failed"
        assert job_row(ledger, made).state is JobState.RUNNING
        finish(ledger, made, d)
        assert job_row(ledger, made).state is JobState.FAILED

    def test_a_failed_chunk_cancels_the_fan_in_and_the_rest_goes_on(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 3)
        leases = take(ledger)
        finish(ledger, made, leases[0])
        fail(ledger, leases[1], permanent=True)
        join = row(ledger, made, "join")
        assert (join.state, join.message) == (X, "hear[1] failed")
        assert job_row(ledger, made).state is JobState.RUNNING
        assert finish(ledger, made, leases[2]) == [True]
        assert job_row(ledger, made).state is JobState.FAILED
        assert take(ledger) == []
        assert events_of(ledger, join.id) == [("blocked", "cancelled")]

    def test_several_failures_in_one_batch_cancel_once(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 2)
        failures = [
            Failure(lease.task_id, lease.fence, "E", "bad", permanent=True)
            for lease in take(ledger)
        ]
        assert ledger.fail(failures) == [F, F]
        join = row(ledger, made, "join")
        assert events_of(ledger, join.id) == [("blocked", "cancelled")]
        assert job_row(ledger, made).state is JobState.FAILED

    def test_along_a_chain_only_the_same_chunk_and_the_fan_in_stop(self, ledger: Ledger) -> None:
        made = job(
            plan("cut"),
            mapped("sample", "cut"),
            mapped("read", "cut", same=["sample"]),
            step("index", every=["read"]),
            step("page", one=["index"]),
        )
        planned(ledger, made, 2)
        first, second = take(ledger)
        fail(ledger, first, permanent=True)
        assert states_of(ledger, made) == {
            "cut": D,
            "sample[0]": F,
            "sample[1]": TaskState.LEASED,
            "read[0]": X,
            "read[1]": TaskState.BLOCKED,
            "index": X,
            "page": X,
        }
        finish(ledger, made, second)
        assert run(ledger, made) == ["read[1]"]
        assert job_row(ledger, made).state is JobState.FAILED

    def test_a_plan_that_fails_ends_its_job(self, ledger: Ledger) -> None:
        made = submit(ledger, fan_job())
        fail(ledger, take_one(ledger), permanent=True)
        assert states_of(ledger, made) == {"cut": F}
        assert job_row(ledger, made).state is JobState.FAILED

    def test_tasks_planned_after_their_input_failed_are_cancelled_too(self, ledger: Ledger) -> None:
        made = job(
            step("audio"),
            plan("cut"),
            mapped("hear", "cut", one=["audio"]),
            mapped("tidy", "cut", same=["hear"]),
            step("join", every=["tidy"]),
            mapped("see", "cut"),
        )
        submit(ledger, made)
        named = take_named(ledger)
        fail(ledger, named["audio"], permanent=True)
        assert finish(ledger, made, named["cut"], found=chunks(1)) == [True]
        assert states_of(ledger, made) == {
            "audio": F,
            "cut": D,
            "hear[0]": X,
            "tidy[0]": X,
            "join": X,
            "see[0]": TaskState.PENDING,
        }
        assert row(ledger, made, "join").message == "audio failed"
        assert run(ledger, made) == ["see[0]"]
        assert job_row(ledger, made).state is JobState.FAILED

    def test_a_failed_job_whose_last_plan_adds_only_cancelled_tasks_ends(
        self, ledger: Ledger
    ) -> None:
        made = submit(ledger, job(step("audio"), plan("cut"), mapped("hear", "cut", one=["audio"])))
        named = take_named(ledger)
        fail(ledger, named["audio"], permanent=True)
        finish(ledger, made, named["cut"], found=chunks(2))
        assert job_row(ledger, made).state is JobState.FAILED
