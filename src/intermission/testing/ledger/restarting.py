"""The contract: cancelling, trying again by hand, and lost bytes."""

from __future__ import annotations

from intermission.model import JobState, TaskState
from intermission.testing.jobs import (
    chain_job,
    chunks,
    fan_job,
    job,
    line_job,
    mapped,
    plan,
    step,
    submit,
)
from intermission.testing.ledger.suite import (
    TTL_S,
    FakeClock,
    Ledger,
    Suite,
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

B, P, D = TaskState.BLOCKED, TaskState.PENDING, TaskState.DONE
F, X, C = TaskState.FAILED, TaskState.CANCELLED, TaskState.CORRUPT


class Restarting(Suite):
    def test_cancel_stops_what_is_unfinished(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 5)
        done, failed, retrying, released, _ = take(ledger)
        finish(ledger, made, done)
        fail(ledger, retrying, delay_s=9)
        ledger.release([(released.task_id, released.fence)], reason="drain")
        assert ledger.cancel(made.key, reason="not needed any more")
        assert states_of(ledger, made) == {
            "cut": D,
            "hear[0]": D,
            **{f"hear[{n}]": X for n in (1, 2, 3, 4)},
            "join": X,
        }
        assert row(ledger, made, "join").message == "not needed any more"
        shown = job_row(ledger, made)
        assert (shown.state, shown.reason) == (JobState.CANCELLED, "not needed any more")
        told = [event.message for event in ledger.events() if event.task_id is None]
        assert told[-1] == "not needed any more"
        assert take(ledger) == []
        assert finish(ledger, made, failed) == [False]
        assert finish(ledger, made, done) == [True]

    def test_an_ended_job_is_not_cancelled(self, ledger: Ledger) -> None:
        done = submit(ledger, line_job(key="done"))
        run(ledger, done)
        failed = submit(ledger, line_job(key="failed"))
        fail(ledger, take_one(ledger), permanent=True)
        cancelled = submit(ledger, line_job(key="cancelled"))
        assert ledger.cancel(cancelled.key, reason="no")
        before = (ledger.jobs(), ledger.events())
        for made in (done, failed, cancelled):
            assert not ledger.cancel(made.key, reason="again")
        assert (ledger.jobs(), ledger.events()) == before

    def test_cancelling_one_job_leaves_the_others(self, ledger: Ledger) -> None:
        one = submit(ledger, line_job(key="one"))
        two = submit(ledger, line_job(key="two"))
        ledger.cancel(one.key, reason="no")
        assert run(ledger, two) == ["fetch", "pack"]

    def test_a_failed_task_gets_a_fresh_set_of_attempts(self, ledger: Ledger) -> None:
        made = submit(ledger, job(step("a", attempts=2), step("b", one=["a"])))
        for _ in range(2):
            fail(ledger, take_one(ledger))
        assert ledger.retry(made.key) == 2
        shown = row(ledger, made, "a")
        assert (shown.state, shown.attempts, shown.error) == (P, 0, None)
        assert states_of(ledger, made)["b"] is B
        assert job_row(ledger, made).state is JobState.RUNNING
        assert fail(ledger, take_one(ledger)) is TaskState.RETRYING
        assert run(ledger, made) == ["a", "b"]
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_late_end_of_the_old_attempt_is_refused_after_a_retry(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        old = take_one(ledger)
        ledger.cancel(made.key, reason="no")
        assert ledger.retry(made.key) == 2
        assert finish(ledger, made, old) == [False]
        assert heartbeat(ledger, old).lost == {old.task_id}
        new = take_one(ledger)
        assert new.fence > old.fence
        assert finish(ledger, made, old) == [False]
        assert finish(ledger, made, new) == [True]

    def test_retry_takes_back_what_the_failure_cancelled(self, ledger: Ledger) -> None:
        made = planned(ledger, chain_job(), 2)
        first, second = take(ledger)
        finish(ledger, made, second)
        fail(ledger, first, permanent=True)
        assert ledger.retry(made.key, [first.task_id]) == 3
        assert states_of(ledger, made) == {
            "cut": D,
            "sample[0]": P,
            "sample[1]": D,
            "read[0]": B,
            "read[1]": P,
            "index": B,
        }
        assert set(run(ledger, made)) == {"sample[0]", "read[0]", "read[1]", "index"}
        assert job_row(ledger, made).state is JobState.DONE

    def test_retry_of_a_cancelled_job_goes_on_where_it_stopped(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 3)
        finish(ledger, made, take_one(ledger))
        ledger.cancel(made.key, reason="no")
        assert ledger.retry(made.key) == 3
        assert run(ledger, made) == ["hear[1]", "hear[2]", "join"]
        assert job_row(ledger, made).state is JobState.DONE

    def test_retry_of_nothing(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 2)
        held = take(ledger)
        before = (ledger.jobs(), ledger.events())
        assert ledger.retry(made.key) == 0
        assert ledger.retry(made.key, []) == 0
        assert ledger.retry(made.key, [lease.task_id for lease in held]) == 0
        assert ledger.retry(made.key, [98765]) == 0
        assert (ledger.jobs(), ledger.events()) == before

    def test_retry_stays_within_its_job(self, ledger: Ledger) -> None:
        one = submit(ledger, line_job(key="one"))
        two = submit(ledger, line_job(key="two"))
        leases = take(ledger)
        for lease in leases:
            fail(ledger, lease, permanent=True)
        assert ledger.retry(one.key, [leases[1].task_id]) == 0
        assert job_row(ledger, one).state is JobState.FAILED
        assert ledger.retry(two.key, [lease.task_id for lease in leases]) == 2
        assert states_of(ledger, one) == {"fetch": F, "pack": X}

    def test_a_fan_in_never_runs_over_a_failure_that_was_not_retried(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 3)
        first, second, third = take(ledger)
        finish(ledger, made, third)
        fail(ledger, first, permanent=True)
        fail(ledger, second, permanent=True)
        assert ledger.retry(made.key, [first.task_id]) >= 1
        assert run(ledger, made) == ["hear[0]"]
        assert job_row(ledger, made).state is JobState.FAILED
        assert ledger.retry(made.key, [second.task_id]) == 2
        assert run(ledger, made) == ["hear[1]", "join"]
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_fan_in_retried_alone_never_runs_over_what_was_cancelled(
        self, ledger: Ledger
    ) -> None:
        made = planned(ledger, fan_job(), 2)
        finish(ledger, made, take_one(ledger))
        ledger.cancel(made.key, reason="no")
        ledger.retry(made.key, [row(ledger, made, "join").id])
        assert run(ledger, made) == []
        assert job_row(ledger, made).state is JobState.CANCELLED

    def test_a_task_whose_input_stays_stopped_does_not_keep_its_job_open(
        self, ledger: Ledger
    ) -> None:
        made = submit(ledger, line_job())
        fail(ledger, take_one(ledger), permanent=True)
        ledger.retry(made.key, [row(ledger, made, "pack").id])
        assert run(ledger, made) == []
        assert job_row(ledger, made).state is JobState.FAILED

    def test_a_job_with_tasks_left_cancelled_is_not_done(self, ledger: Ledger) -> None:
        made = submit(ledger, job(step("a"), step("b")))
        ledger.cancel(made.key, reason="no")
        assert ledger.retry(made.key, [row(ledger, made, "a").id]) == 1
        assert run(ledger, made) == ["a"]
        assert job_row(ledger, made).state is JobState.CANCELLED

    def test_retry_of_a_gap_runs_the_fan_in_again(self, ledger: Ledger) -> None:
        made = planned(ledger, chain_job(skippable=True), 2)
        first, second = take(ledger)
        fail(ledger, first, permanent=True)
        finish(ledger, made, second)
        run(ledger, made)
        assert job_row(ledger, made).state is JobState.DONE
        index = row(ledger, made, "index")
        assert ledger.retry(made.key) == 3
        assert job_row(ledger, made).state is JobState.RUNNING
        assert states_of(ledger, made) == {
            "cut": D,
            "sample[0]": P,
            "sample[1]": D,
            "read[0]": B,
            "read[1]": D,
            "index": B,
        }
        assert row(ledger, made, "index").fence > index.fence
        assert outputs_of(ledger, made, "index") == [None]
        assert run(ledger, made) == ["sample[0]", "read[0]", "index"]
        assert None not in outputs_of(ledger, made, "read")

    def test_a_gap_is_retried_while_its_fan_in_waits_or_runs(self, ledger: Ledger) -> None:
        for key, claimed in (("waits", False), ("runs", True)):
            made = planned(ledger, fan_job(skippable=True, key=key), 1)
            gap = take_one(ledger, jobs=[key])
            fail(ledger, gap, permanent=True)
            join = take_one(ledger, jobs=[key]) if claimed else None
            ledger.retry(made.key, [gap.task_id])
            assert states_of(ledger, made) == {"cut": D, "hear[0]": P, "join": B}
            if join is not None:
                assert finish(ledger, made, join) == [False]
            assert run(ledger, made) == ["hear[0]", "join"]

    def test_lost_bytes_send_a_task_and_what_depends_on_it_back(self, ledger: Ledger) -> None:
        made = submit(ledger, chain_job())
        run(ledger, made)
        before = {task.name: task for task in ledger.tasks(made.key)}
        spoiled = ledger.invalidate([before["sample[1]"].id], reason="a byte flipped")
        assert {task.name: task.state for task in spoiled} == {
            "sample[1]": C,
            "read[1]": B,
            "index": B,
        }
        for task in spoiled:
            old = before[task.name]
            assert (task.id, task.key, task.step) == (old.id, old.key, old.step)
            now = row(ledger, made, task.name)
            assert (now.attempts, now.state) == (0, task.state)
            assert now.fence > old.fence
        assert states_of(ledger, made)["read[0]"] is D
        assert outputs_of(ledger, made, "index") == [None]
        assert job_row(ledger, made).state is JobState.RUNNING
        assert run(ledger, made) == ["sample[1]", "read[1]", "index"]
        assert job_row(ledger, made).state is JobState.DONE

    def test_what_works_on_lost_bytes_is_stopped(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, job(step("a"), *(step(n, one=["a"]) for n in "bcdefg")))
        a = take_one(ledger)
        finish(ledger, made, a)
        b, c, d, e, f = take(ledger, 5)  # and g stays pending
        heartbeat(ledger, c)
        fail(ledger, d, delay_s=9)
        ledger.release([(e.task_id, e.fence)], reason="drain")
        fail(ledger, f, permanent=True)
        spoiled = ledger.invalidate([a.task_id], reason="gone")
        assert states_of(ledger, made) == {"a": C, **dict.fromkeys("bcdeg", B), "f": F}
        assert {task.name for task in spoiled} == set("abcdeg")
        assert finish(ledger, made, a, b, c, e) == [False] * 4
        assert heartbeat(ledger, b, c, e).lost == {b.task_id, c.task_id, e.task_id}
        clock.advance(TTL_S)
        assert ledger.rescue() == 0
        assert run(ledger, made) == ["a", *"bcdeg"]
        assert job_row(ledger, made).state is JobState.FAILED

    def test_a_corrupt_task_whose_input_is_lost_too_waits_for_it(self, ledger: Ledger) -> None:
        for key, at_once in (("together", True), ("later", False), ("first", None)):
            made = submit(ledger, line_job(key=key))
            run(ledger, made)
            fetch, pack = (row(ledger, made, name).id for name in ("fetch", "pack"))
            if at_once:
                spoiled = ledger.invalidate([fetch, pack], reason="gone")
                assert sorted(task.id for task in spoiled) == sorted([fetch, pack])
            elif at_once is None:
                ledger.invalidate([fetch], reason="gone")
                assert ledger.invalidate([pack], reason="gone") == []
            else:
                ledger.invalidate([pack], reason="gone")
                ledger.invalidate([fetch], reason="gone")
            assert states_of(ledger, made) == {"fetch": C, "pack": B}
            assert run(ledger, made) == ["fetch", "pack"]

    def test_what_is_sent_back_behind_a_plan_that_failed_is_cancelled(self, ledger: Ledger) -> None:
        made = submit(ledger, fan_job())
        run(ledger, made)
        ledger.invalidate([row(ledger, made, "cut").id], reason="gone")
        fail(ledger, take_one(ledger), permanent=True)
        assert states_of(ledger, made)["join"] is D
        ledger.invalidate([row(ledger, made, "hear[0]").id], reason="gone")
        assert states_of(ledger, made)["join"] is X
        assert run(ledger, made) == ["hear[0]"]
        assert job_row(ledger, made).state is JobState.FAILED
        assert ledger.retry(made.key) == 2
        assert run(ledger, made) == ["cut", "join"]
        assert job_row(ledger, made).state is JobState.DONE

    def test_only_done_tasks_are_spoiled(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 3)
        held, failed, _ = take(ledger)
        fail(ledger, failed, permanent=True)
        before = (ledger.events(), list(ledger.tasks(made.key)))
        ids = [held.task_id, failed.task_id, row(ledger, made, "join").id, 98765]
        assert ledger.invalidate(ids, reason="gone") == []
        assert ledger.invalidate([], reason="gone") == []
        assert (ledger.events(), list(ledger.tasks(made.key))) == before

    def test_a_spoiled_task_that_fails_for_good_takes_its_dependants_along(
        self, ledger: Ledger
    ) -> None:
        made = submit(ledger, fan_job())
        run(ledger, made)
        ledger.invalidate([row(ledger, made, "hear[1]").id], reason="gone")
        lease = take_one(ledger)
        assert (lease.step, lease.attempt) == ("hear", 1)
        fail(ledger, lease, permanent=True)
        assert row(ledger, made, "join").state is X
        assert job_row(ledger, made).state is JobState.FAILED

    def test_forget_removes_a_job_but_not_under_a_worker(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        other = submit(ledger, line_job(key="other"))
        lease = take_one(ledger, jobs=[made.key])
        assert not ledger.delete(made.key)
        heartbeat(ledger, lease)
        assert not ledger.delete(made.key)
        assert len(states_of(ledger, made)) == 2
        ledger.release([(lease.task_id, lease.fence)], reason="drain")
        assert ledger.delete(made.key)
        assert not ledger.delete(made.key)
        assert [shown.job for shown in ledger.jobs()] == [other]
        assert list(ledger.tasks(made.key)) == []
        assert finish(ledger, made, lease) == [False]
        assert heartbeat(ledger, lease).lost == {lease.task_id}

    def test_a_lease_of_a_forgotten_job_never_fits_the_job_submitted_again(
        self, ledger: Ledger
    ) -> None:
        made = submit(ledger, line_job())
        zombie = take_one(ledger)
        ledger.release([(zombie.task_id, zombie.fence)], reason="drain")
        assert ledger.delete(made.key)
        submit(ledger, made)
        lease = take_one(ledger, worker="w2")
        assert finish(ledger, made, zombie) == [False]
        assert heartbeat(ledger, zombie).lost == {zombie.task_id}
        assert fail(ledger, zombie, permanent=True) is None
        assert finish(ledger, made, lease) == [True]

    def test_marks_follow_the_table(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        assert not ledger.mark(made.key, JobState.PENDING)
        assert ledger.mark(made.key, JobState.DRAINING, reason="spot notice")
        shown = job_row(ledger, made)
        assert (shown.state, shown.reason) == (JobState.DRAINING, "spot notice")
        assert not ledger.mark(made.key, JobState.DRAINING)
        assert ledger.mark(made.key, JobState.RUNNING)
        assert ledger.mark(made.key, JobState.FAILED, reason="the source is gone")
        assert not ledger.mark(made.key, JobState.DONE)
        assert ledger.mark(made.key, JobState.RUNNING)
        run(ledger, made)
        assert job_row(ledger, made).state is JobState.DONE
        assert not ledger.mark(made.key, JobState.FAILED)

    def test_a_draining_job_may_end(self, ledger: Ledger) -> None:
        made = submit(ledger, job(step("a")))
        lease = take_one(ledger)
        ledger.mark(made.key, JobState.DRAINING)
        finish(ledger, made, lease)
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_job_that_was_marked_ended_stays_ended(self, ledger: Ledger) -> None:
        for state in (JobState.FAILED, JobState.CANCELLED):
            made = submit(ledger, job(step("a"), key=state))
            lease = take_one(ledger)
            ledger.mark(made.key, state, reason="the source is gone")
            assert finish(ledger, made, lease) == [True]
            ledger.rescue()
            assert job_row(ledger, made).state is state

    def test_a_plan_is_retried(self, ledger: Ledger) -> None:
        made = submit(ledger, job(plan("cut"), mapped("hear", "cut")))
        fail(ledger, take_one(ledger), permanent=True)
        assert ledger.retry(made.key) == 1
        finish(ledger, made, take_one(ledger), found=chunks(2))
        assert run(ledger, made) == ["hear[0]", "hear[1]"]
