"""The contract: completions, once and for all, late, repeated and refused."""

from __future__ import annotations

from dataclasses import replace

from intermission.model import (
    Completion,
    Failure,
    Job,
    JobState,
    Lease,
    Limit,
    Output,
    TaskState,
)
from intermission.testing.jobs import (
    Chunks,
    chunks,
    completion,
    fan_job,
    job,
    line_job,
    step,
    submit,
)
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
    outputs_of,
    planned,
    row,
    run,
    states_of,
    take,
    take_one,
)


class Completing(Suite):
    def test_a_completion_is_recorded(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        clock.advance(3)
        done = completion(ledger, made, lease, files=1)
        assert ledger.complete([done]) == [True]
        shown = row(ledger, made, "fetch")
        assert (shown.state, shown.ended_ms, shown.adopted) == (
            TaskState.DONE,
            clock.now_ms(),
            False,
        )
        assert done.receipt is not None
        output = Output(lease.key, done.result, done.receipt.files)
        assert outputs_of(ledger, made, "fetch") == [output]

    def test_an_adopted_receipt_is_marked(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        ledger.complete([replace(completion(ledger, made, lease), adopted=True)])
        assert row(ledger, made, "fetch").adopted

    def test_a_task_with_a_receipt_is_done_without_a_lease(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, line_job())
        ledger.limit(Limit(f"job:{made.key}", paused=True))
        assert ledger.complete([_by_receipt(ledger, made, "fetch")]) == [True]
        shown = row(ledger, made, "fetch")
        assert (shown.state, shown.adopted, shown.attempts) == (TaskState.DONE, True, 0)
        assert row(ledger, made, "pack").state is TaskState.PENDING
        assert ledger.complete([_by_receipt(ledger, made, "fetch")]) == [True], "a repeat"
        assert ledger.complete([_by_receipt(ledger, made, "pack")]) == [True]
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_receipt_ends_what_is_claimable_and_nothing_else(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, line_job())
        assert ledger.complete([_by_receipt(ledger, made, "pack")]) == [False], "it is blocked"
        before = _by_receipt(ledger, made, "fetch")
        lease = take_one(ledger)
        assert ledger.complete([before]) == [False], "somebody claimed it since"
        assert ledger.complete([_by_receipt(ledger, made, "fetch")]) == [False], "it is held"
        fail(ledger, lease, delay_s=60)
        assert ledger.complete([_by_receipt(ledger, made, "fetch")]) == [True]
        ledger.invalidate([lease.task_id], reason="gone")
        assert ledger.complete([_by_receipt(ledger, made, "fetch")]) == [True]
        wrong = replace(_by_receipt(ledger, made, "pack"), key="another")
        assert ledger.complete([wrong]) == [False]

    def test_a_plan_with_a_receipt_adds_its_tasks(self, ledger: Ledger) -> None:
        made = submit(ledger, fan_job())
        plan = _by_receipt(ledger, made, "cut", chunks(2))
        assert ledger.complete([plan]) == [True]
        assert ledger.complete(
            [_by_receipt(ledger, made, "hear", index=index) for index in range(2)]
        ) == [True, True]
        assert row(ledger, made, "join").state is TaskState.PENDING

    def test_what_waited_starts_and_the_job_ends_in_the_same_call(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        finish(ledger, made, take_one(ledger))
        assert states_of(ledger, made) == {"fetch": TaskState.DONE, "pack": TaskState.PENDING}
        assert job_row(ledger, made).state is JobState.RUNNING
        finish(ledger, made, take_one(ledger))
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_task_waits_for_each_of_its_inputs(self, ledger: Ledger) -> None:
        made = submit(ledger, job(step("a"), step("b"), step("c", one=["a", "b"])))
        a, b = take(ledger)
        finish(ledger, made, b)
        assert row(ledger, made, "c").state is TaskState.BLOCKED
        finish(ledger, made, a)
        assert row(ledger, made, "c").state is TaskState.PENDING

    def test_one_result_lets_many_tasks_start(self, ledger: Ledger) -> None:
        made = submit(ledger, job(step("a"), step("b", one=["a"]), step("c", one=["a"])))
        finish(ledger, made, take_one(ledger))
        assert [lease.step for lease in take(ledger)] == ["b", "c"]

    def test_a_repeat_changes_nothing(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        done = completion(ledger, made, lease)
        assert ledger.complete([done]) == [True]
        before = (ledger.events(), list(ledger.tasks(made.key)), outputs_of(ledger, made, "fetch"))
        clock.advance(9)
        other = replace(done, result='"another"', adopted=True)
        assert ledger.complete([done, other]) == [True, True]
        after = (ledger.events(), list(ledger.tasks(made.key)), outputs_of(ledger, made, "fetch"))
        assert after == before

    def test_a_repeat_after_the_job_ended_is_still_answered(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        finish(ledger, made, lease)
        run(ledger, made)
        assert finish(ledger, made, lease) == [True]
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_late_completion_nobody_contested_is_accepted(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = planned(ledger, fan_job(), 3)
        unnoticed, abandoned, released = take(ledger)
        clock.advance(TTL_S - 1)
        heartbeat(ledger, unnoticed)
        ledger.release([(released.task_id, released.fence)], reason="drain")
        clock.advance(1)
        assert ledger.rescue() == 1
        clock.advance(TTL_S)
        assert row(ledger, made, "hear[1]").state is TaskState.ABANDONED
        assert finish(ledger, made, unnoticed, abandoned, released) == [True, True, True]
        assert take_one(ledger).step == "join"

    def test_a_completion_with_an_old_fence_is_refused(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, line_job())
        old = take_one(ledger)
        clock.advance(TTL_S)
        ledger.rescue()
        new = take_one(ledger, worker="w2")
        before = (ledger.events(), list(ledger.tasks(made.key)))
        assert finish(ledger, made, old) == [False]
        assert (ledger.events(), list(ledger.tasks(made.key))) == before
        assert finish(ledger, made, new) == [True]
        assert finish(ledger, made, old) == [False]
        (output,) = outputs_of(ledger, made, "fetch")
        assert output is not None
        assert output.result == completion(ledger, made, new).result

    def test_a_fence_nobody_was_given_is_refused(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        unclaimed = row(ledger, made, "fetch")
        assert ledger.complete([Completion(unclaimed.id, unclaimed.fence, "1")]) == [False]
        lease = take_one(ledger)
        assert finish(ledger, made, replace(lease, fence=lease.fence + 1)) == [False]
        assert finish(ledger, made, replace(lease, task_id=98765)) == [False]
        assert states_of(ledger, made)["fetch"] is TaskState.LEASED

    def test_an_id_that_is_another_task_by_now_is_refused(self, ledger: Ledger) -> None:
        """As after the ledger was restored from a copy: id and fence were handed out again."""
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        ids = lease.task_id, lease.fence
        assert ledger.complete([Completion(*ids, "1", key="another")]) == [False]
        assert ledger.fail([Failure(*ids, "Broken", "it broke", True, key="another")]) == [None]
        assert states_of(ledger, made)["fetch"] is TaskState.LEASED
        assert ledger.complete([Completion(*ids, "1", key=lease.key)]) == [True]
        assert ledger.complete([Completion(*ids, "2", key="another")]) == [False]
        assert ledger.complete([Completion(*ids, "2", key=lease.key)]) == [True]

    def test_a_task_that_ended_otherwise_is_not_completed(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 3)
        retrying, failed, held = take(ledger)
        fail(ledger, retrying, delay_s=9)
        fail(ledger, failed, permanent=True)
        assert finish(ledger, made, retrying, failed) == [False, False]
        ledger.cancel(made.key, reason="no")
        assert finish(ledger, made, held) == [False]
        assert states_of(ledger, made) == {
            "cut": TaskState.DONE,
            "hear[0]": TaskState.CANCELLED,
            "hear[1]": TaskState.FAILED,
            "hear[2]": TaskState.CANCELLED,
            "join": TaskState.CANCELLED,
        }

    def test_a_batch_is_answered_one_by_one(self, ledger: Ledger, clock: FakeClock) -> None:
        made = planned(ledger, fan_job(), 2)
        old = take(ledger)
        clock.advance(TTL_S)
        ledger.rescue()
        new = take_one(ledger, worker="w2")
        assert finish(ledger, made, old[0], new, old[1], new, old[1]) == [
            False,
            True,
            True,
            True,
            True,
        ]
        assert events_of(ledger, new.task_id).count(("leased", "done")) == 1

    def test_an_empty_batch(self, ledger: Ledger) -> None:
        assert ledger.complete([]) == []
        assert ledger.fail([]) == []
        assert ledger.release([], reason="none") == 0

    def test_one_batch_may_span_jobs(self, ledger: Ledger) -> None:
        one = submit(ledger, line_job(key="one"))
        two = submit(ledger, line_job(key="two"))
        first, second = take(ledger)
        done = [completion(ledger, one, first), completion(ledger, two, second)]
        assert ledger.complete(done) == [True, True]
        assert [lease.job_key for lease in take(ledger)] == ["one", "two"]


def _by_receipt(
    ledger: Ledger, made: Job, step: str, found: Chunks = (), *, index: int = 0
) -> Completion:
    """The end of a task as its row is now, without a lease."""
    (task,) = [one for one in ledger.tasks(made.key, step=step) if one.index == index]
    place = made.key, step, index, task.key, task.chunk
    lease = Lease(task.id, task.fence, task.attempts + 1, *place)
    return replace(completion(ledger, made, lease, found), adopted=True, by_receipt=True)
