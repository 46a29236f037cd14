"""The contract: what a claim hands out, in which order, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from intermission.engine.inputs import read_inputs
from intermission.errors import InputUnfinished
from intermission.model import Completion, JobState, Output, TaskState
from intermission.testing.jobs import (
    chain_job,
    chunks,
    completion,
    fan_job,
    job,
    line_job,
    mapped,
    plan,
    reduce,
    result_of,
    step,
    submit,
)
from intermission.testing.ledger.suite import (
    FakeClock,
    Ledger,
    Suite,
    events_of,
    fail,
    finish,
    heartbeat,
    inputs_of,
    job_row,
    planned,
    row,
    take,
    take_named,
    take_one,
)


class Claiming(Suite):
    def test_a_claim_leases_a_task(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, line_job())
        before = row(ledger, made, "fetch")
        lease = take_one(ledger, worker="w7")
        after = row(ledger, made, "fetch")
        assert (lease.task_id, lease.job_key, lease.step, lease.key) == (
            before.id,
            made.key,
            "fetch",
            before.key,
        )
        assert (lease.fence, lease.attempt) == (before.fence + 1, 1)
        assert (after.state, after.fence, after.attempts, after.worker) == (
            TaskState.LEASED,
            lease.fence,
            0,
            "w7",
        )
        assert after.started_ms == clock.now_ms()
        assert job_row(ledger, made).state is JobState.RUNNING
        assert events_of(ledger, lease.task_id) == [("pending", "leased")]

    def test_what_is_held_or_blocked_is_not_handed_out(self, ledger: Ledger) -> None:
        submit(ledger, line_job())
        take_one(ledger)
        assert take(ledger, worker="w2") == []

    def test_capacity_is_the_most_it_takes(self, ledger: Ledger) -> None:
        planned(ledger, fan_job(), 5)
        assert take(ledger, 0) == []
        assert [lease.index for lease in take(ledger, 2)] == [0, 1]
        assert [lease.index for lease in take(ledger, 9)] == [2, 3, 4]

    def test_priority_then_age_then_the_order_tasks_were_added(self, ledger: Ledger) -> None:
        for key, priority in (("old", 0), ("new", 0), ("urgent", 5), ("later", -1)):
            submit(ledger, job(step("a"), step("b"), key=key, priority=priority))
        got = [(lease.job_key, lease.step) for lease in take(ledger)]
        keys = ["urgent", "old", "new", "later"]
        assert got == [(key, name) for key in keys for name in ("a", "b")]

    def test_a_task_that_comes_back_keeps_its_place(self, ledger: Ledger) -> None:
        planned(ledger, fan_job(), 4)
        first, second = take(ledger, 2)
        ledger.release([(first.task_id, first.fence)], reason="drain")
        fail(ledger, second)
        assert [lease.index for lease in take(ledger, 3)] == [0, 1, 2]

    def test_a_limited_step_does_not_jump_the_queue(self, ledger: Ledger) -> None:
        submit(ledger, job(step("a"), step("b", concurrency=1), step("c")))
        assert [take_one(ledger).step for _ in range(3)] == ["a", "b", "c"]

    def test_each_claim_raises_the_fence_and_counts_nothing(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, line_job())
        fences: list[int] = []
        for _ in range(3):
            lease = take_one(ledger)
            assert (lease.attempt, row(ledger, made, "fetch").attempts) == (1, 0)
            fences.append(lease.fence)
            clock.advance(60)
            ledger.rescue()
        assert fences == [fences[0], fences[0] + 1, fences[0] + 2]

    def test_a_claim_starts_progress_anew(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, line_job())
        heartbeat(ledger, take_one(ledger), progress=0.8)
        clock.advance(60)
        ledger.rescue()
        take_one(ledger)
        assert row(ledger, made, "fetch").progress == 0

    def test_needs(self, ledger: Ledger) -> None:
        submit(ledger, job(step("a", needs="gpu"), step("b"), step("c", needs="disk")))
        assert [lease.step for lease in take(ledger)] == ["b"]
        assert [lease.step for lease in take(ledger, offers={"disk", "net"})] == ["c"]
        assert [lease.step for lease in take(ledger, offers=["gpu"])] == ["a"]

    def test_only_what_the_worker_has_code_for(self, ledger: Ledger) -> None:
        """Workers of two versions share a fleet, and each claims what it can run."""
        made = [submit(ledger, replace(line_job(key=key), graph=key * 4)) for key in ("old", "new")]
        assert take(ledger, runs=[]) == []
        assert take(ledger, runs=["film@other"]) == []
        for one in made:
            assert [lease.job_key for lease in take(ledger, runs=[one.code, "x@y"])] == [one.key]
        other = submit(ledger, replace(line_job(key="third"), graph="third"))
        assert [lease.job_key for lease in take(ledger, runs=None)] == [other.key]

    def test_what_others_wait_for_stands_in_nobodys_way(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        """Jobs that have nothing now are found again when their time comes."""
        later_ms = clock.now_ms() + 3_600_000
        for n in range(3):
            submit(ledger, job(step("fetch", needs="gpu"), key=f"gpu{n}"))
            submit(ledger, replace(line_job(key=f"later{n}"), not_before_ms=later_ms))
        retried = submit(ledger, line_job(key="retried"))
        fail(ledger, take_one(ledger), delay_s=60)
        for _ in range(2):
            assert take(ledger) == []
        clock.advance(60)
        (lease,) = take(ledger)
        assert (lease.job_key, lease.attempt) == (retried.key, 2)
        assert take(ledger) == []
        clock.advance(3600)
        assert {lease.job_key for lease in take(ledger)} >= {"later0", "later1", "later2"}
        assert {lease.job_key for lease in take(ledger, offers=["gpu"])} >= {"gpu0", "gpu1", "gpu2"}

    def test_only_of_these_jobs(self, ledger: Ledger) -> None:
        for key in ("one", "two", "three"):
            submit(ledger, line_job(key=key))
        assert take(ledger, jobs=[]) == []
        assert take(ledger, jobs=["nobody"]) == []
        assert [lease.job_key for lease in take(ledger, jobs=["two"])] == ["two"]
        assert [lease.job_key for lease in take(ledger, jobs={"three", "one"})] == ["one", "three"]

    def test_a_retry_waits_for_its_time(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, line_job())
        assert fail(ledger, take_one(ledger), delay_s=5) is TaskState.RETRYING
        assert row(ledger, made, "fetch").ready_ms == clock.now_ms() + 5000
        clock.advance(4.9)
        assert take(ledger) == []
        clock.advance(0.2)
        assert take_one(ledger).attempt == 2

    def test_a_waiting_retry_does_not_stop_what_comes_after_it(self, ledger: Ledger) -> None:
        planned(ledger, fan_job(), 3)
        fail(ledger, take_one(ledger), delay_s=5)
        assert [lease.index for lease in take(ledger)] == [1, 2]

    def test_a_draining_job_runs_again_when_claimed(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        assert ledger.mark(made.key, JobState.DRAINING, reason="spot notice")
        take_one(ledger)
        assert job_row(ledger, made).state is JobState.RUNNING

    def test_nothing_of_an_ended_job(self, ledger: Ledger) -> None:
        for state in (JobState.DONE, JobState.FAILED, JobState.CANCELLED):
            made = submit(ledger, line_job(key=state))
            assert ledger.mark(made.key, state)
        assert take(ledger) == []

    def test_inputs_of_one_task(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        fetch = take_one(ledger)
        done = completion(ledger, made, fetch, files=2)
        ledger.complete([done])
        assert done.receipt is not None
        output = Output(fetch.key, done.result, done.receipt.files)
        assert inputs_of(ledger, made, take_one(ledger)) == {"fetch": output}

    def test_inputs_of_a_light_step_come_from_the_ledger_alone(self, ledger: Ledger) -> None:
        made = submit(ledger, job(step("a", durable=False), step("b", one=["a"])))
        lease = take_one(ledger)
        ledger.complete([Completion(lease.task_id, lease.fence, '"x"')])
        assert inputs_of(ledger, made, take_one(ledger)) == {"a": Output(lease.key, '"x"')}

    def test_an_output_is_named_by_the_receipt_it_was_read_from(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        done = completion(ledger, made, take_one(ledger))
        assert done.receipt is not None
        adopted = replace(done, receipt=replace(done.receipt, task_key="elsewhere"), adopted=True)
        ledger.complete([adopted])
        found = inputs_of(ledger, made, take_one(ledger))
        assert found == {"fetch": Output("elsewhere", done.result)}

    def test_inputs_chunk_by_chunk_and_of_all_chunks_in_their_order(self, ledger: Ledger) -> None:
        made = job(
            step("audio"),
            plan("cut"),
            mapped("hear", "cut", one=["audio"]),
            mapped("tidy", "cut", same=["hear"], one=["audio"]),
            reduce("join", "tidy", "hear"),
        )
        submit(ledger, made)
        # More than ten, so that an order by text would show.
        first = take_named(ledger)
        finish(ledger, made, first["cut"], found=chunks(12))
        finish(ledger, made, first["audio"])
        audio = Output(first["audio"].key, result_of(first["audio"]))
        hears = take(ledger)
        assert all(inputs_of(ledger, made, lease) == {"audio": audio} for lease in hears)
        finish(ledger, made, *reversed(hears))
        heard = [Output(lease.key, result_of(lease)) for lease in hears]
        tidies = take(ledger)
        for lease in tidies:
            found = inputs_of(ledger, made, lease)
            assert found == {"hear": heard[lease.index], "audio": audio}
            assert lease.chunk == chunks(12)[lease.index]
        finish(ledger, made, *tidies)
        tidied = [Output(lease.key, result_of(lease)) for lease in tidies]
        join = take_one(ledger)
        found = inputs_of(ledger, made, join)
        assert found == {"tidy": tuple(tidied), "hear": tuple(heard)}
        some = read_inputs(ledger, made, tidies)
        assert [list(some[one.task_id]["hear"]) for one in tidies] == [[one] for one in heard]

    def test_an_input_that_was_lost_since_is_no_input(self, ledger: Ledger) -> None:
        """What was claimed is taken back, and must not run as if the chunk had been skipped."""
        made = planned(ledger, chain_job(skippable=True), 3)
        samples = take(ledger)
        fail(ledger, samples[0], permanent=True)
        finish(ledger, made, *samples[1:])
        reads = take(ledger)
        finish(ledger, made, *reads)
        index = take_one(ledger)
        outputs = inputs_of(ledger, made, index)["read"]
        assert [one is None for one in outputs] == [True, False, False]
        ledger.invalidate([reads[1].task_id], reason="gone")
        with pytest.raises(InputUnfinished):
            inputs_of(ledger, made, index)
        ledger.invalidate([samples[1].task_id], reason="gone")
        with pytest.raises(InputUnfinished):
            inputs_of(ledger, made, reads[0])

    def test_a_limit_holds_within_one_claim(self, ledger: Ledger) -> None:
        made = job(plan("cut"), mapped("hear", "cut", concurrency=2), mapped("see", "cut"))
        planned(ledger, made, 3)
        got = [(lease.step, lease.index) for lease in take(ledger)]
        assert got == [("hear", 0), ("hear", 1), ("see", 0), ("see", 1), ("see", 2)]

    def test_a_limit_counts_leased_running_and_deferred_tasks(self, ledger: Ledger) -> None:
        made = planned(ledger, job(plan("cut"), mapped("hear", "cut", concurrency=3)), 6)
        leased, running, deferred = take(ledger)
        heartbeat(ledger, running)
        assert ledger.defer(deferred.task_id, deferred.fence, token="t", timeout_s=600)
        assert take(ledger) == []
        finish(ledger, made, running)
        assert [lease.index for lease in take(ledger)] == [3]
        ledger.release([(leased.task_id, leased.fence)], reason="drain")
        assert [lease.index for lease in take(ledger)] == [0]
        finish(ledger, made, deferred)
        assert [lease.index for lease in take(ledger)] == [4]

    def test_a_limit_is_shared_by_the_jobs_of_a_pipeline(self, ledger: Ledger) -> None:
        made = {
            key: submit(ledger, job(step("call", concurrency=1), key=key, pipeline=pipeline))
            for key, pipeline in (("a", "p"), ("b", "p"), ("c", "q"))
        }
        a, c = take(ledger)
        assert [a.job_key, c.job_key] == ["a", "c"]
        assert take(ledger) == []
        finish(ledger, made["c"], c)
        assert take(ledger) == []
        finish(ledger, made["a"], a)
        assert [lease.job_key for lease in take(ledger)] == ["b"]

    def test_a_limit_counts_steps_of_its_own_name_alone(self, ledger: Ledger) -> None:
        submit(ledger, job(step("call", concurrency=1), step("other", concurrency=1)))
        assert [lease.step for lease in take(ledger)] == ["call", "other"]
