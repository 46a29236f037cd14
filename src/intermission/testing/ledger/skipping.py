"""The contract: declared gaps, which a fan-in passes over, and failures, which it never does."""

from __future__ import annotations

from intermission.model import LOST_MAX, Job, JobState, Output, TaskState
from intermission.testing.jobs import (
    chain_job,
    chunks,
    fan_job,
    job,
    mapped,
    plan,
    reduce,
    result_of,
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
    inputs_of,
    job_row,
    outputs_of,
    planned,
    row,
    run,
    states_of,
    take,
    take_named,
    take_one,
)

B, P, D = TaskState.BLOCKED, TaskState.PENDING, TaskState.DONE
F, X = TaskState.FAILED, TaskState.CANCELLED


def _two_inputs() -> Job:
    """Chunks that need a gap's result and another's, which may not be missing."""
    return job(
        step("audio"),
        plan("cut"),
        mapped("sample", "cut", skippable=True),
        mapped("read", "cut", same=["sample"], one=["audio"]),
        reduce("index", "read"),
    )


class Skipping(Suite):
    def test_a_fan_in_goes_ahead_without_a_gap(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(skippable=True), 3)
        first, second, third = take(ledger)
        assert fail(ledger, second, permanent=True) is F
        finish(ledger, made, first)
        assert row(ledger, made, "join").state is B
        finish(ledger, made, third)
        join = take_one(ledger)
        heard = (Output(first.key, result_of(first)), None, Output(third.key, result_of(third)))
        assert inputs_of(ledger, made, join) == {"hear": heard}
        finish(ledger, made, join)
        assert job_row(ledger, made).state is JobState.DONE
        assert outputs_of(ledger, made, "hear") == list(heard)

    def test_a_gap_that_comes_last_lets_the_fan_in_start(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(skippable=True), 2)
        first, second = take(ledger)
        finish(ledger, made, first)
        fail(ledger, second, permanent=True)
        assert row(ledger, made, "join").state is P

    def test_nothing_but_gaps(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(skippable=True), 2)
        for lease in take(ledger):
            fail(ledger, lease, permanent=True)
        join = take_one(ledger)
        assert inputs_of(ledger, made, join) == {"hear": (None, None)}
        finish(ledger, made, join)
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_gap_is_tried_as_often_as_any_task(self, ledger: Ledger) -> None:
        planned(ledger, fan_job(skippable=True, attempts=2), 1)
        assert fail(ledger, take_one(ledger)) is TaskState.RETRYING
        assert fail(ledger, take_one(ledger)) is F

    def test_a_gap_spreads_along_a_chain_of_maps(self, ledger: Ledger) -> None:
        made = planned(ledger, chain_job(skippable=True), 3)
        samples = take(ledger)
        fail(ledger, samples[1], permanent=True)
        shown = row(ledger, made, "read[1]")
        assert (shown.state, shown.message) == (X, "sample[1] failed")
        assert row(ledger, made, "index").state is B
        finish(ledger, made, samples[0], samples[2])
        finish(ledger, made, *take(ledger))
        index = take_one(ledger)
        outputs = inputs_of(ledger, made, index)["read"]
        assert [output is None for output in outputs] == [False, True, False]
        finish(ledger, made, index)
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_gap_that_ends_the_last_of_a_chain_lets_the_fan_in_start(
        self, ledger: Ledger
    ) -> None:
        made = planned(ledger, chain_job(skippable=True), 2)
        first, second = take(ledger)
        finish(ledger, made, first)
        finish(ledger, made, take_one(ledger))
        assert row(ledger, made, "index").state is B
        fail(ledger, second, permanent=True)
        assert row(ledger, made, "index").state is P

    def test_a_gap_spreads_over_three_maps(self, ledger: Ledger) -> None:
        made = job(
            plan("cut"),
            mapped("a", "cut", skippable=True),
            mapped("b", "cut", same=["a"]),
            mapped("c", "cut", same=["b"]),
            reduce("join", "c"),
        )
        planned(ledger, made, 1)
        fail(ledger, take_one(ledger), permanent=True)
        assert states_of(ledger, made) == {"cut": D, "a[0]": F, "b[0]": X, "c[0]": X, "join": P}
        assert inputs_of(ledger, made, take_one(ledger)) == {"c": (None,)}

    def test_lost_workers_leave_gaps_too(self, ledger: Ledger, clock: FakeClock) -> None:
        made = planned(ledger, fan_job(skippable=True, attempts=1), 3)
        finish(ledger, made, take_one(ledger))
        for _ in range(LOST_MAX):
            take(ledger)
            clock.advance(TTL_S)
            ledger.rescue()
        assert states_of(ledger, made) == {
            "cut": D,
            "hear[0]": D,
            "hear[1]": F,
            "hear[2]": F,
            "join": P,
        }
        run(ledger, made)
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_failure_after_a_gap_is_still_a_failure(self, ledger: Ledger) -> None:
        made = planned(ledger, chain_job(skippable=True), 2)
        gap, fine = take(ledger)
        fail(ledger, gap, permanent=True)
        finish(ledger, made, fine)
        fail(ledger, take_one(ledger), permanent=True)  # read[1], which may not be missing
        assert row(ledger, made, "index").state is X
        assert job_row(ledger, made).state is JobState.FAILED
        assert take(ledger) == []

    def test_a_gap_after_a_failure_changes_nothing_about_it(self, ledger: Ledger) -> None:
        made = planned(ledger, chain_job(skippable=True), 2)
        gap, fine = take(ledger)
        finish(ledger, made, fine)
        fail(ledger, take_one(ledger), permanent=True)
        fail(ledger, gap, permanent=True)
        assert row(ledger, made, "index").state is X
        assert job_row(ledger, made).state is JobState.FAILED

    def test_a_fan_in_lost_after_its_gap_became_a_hole_is_cancelled(self, ledger: Ledger) -> None:
        made = submit(ledger, _two_inputs())
        audio, cut = take(ledger)
        finish(ledger, made, audio)
        finish(ledger, made, cut, found=chunks(1))
        fail(ledger, take_one(ledger), permanent=True)
        index = take_one(ledger)
        finish(ledger, made, index)
        ledger.invalidate(
            [audio.task_id], reason="gone"
        )  # all that took it starts again: the index
        finish(ledger, made, take_named(ledger)["index"])
        ledger.cancel(made.key, reason="not wanted")
        assert states_of(ledger, made)["index"] is D
        (lost,) = ledger.invalidate([index.task_id], reason="gone")
        assert (lost.name, lost.state) == ("index", X)
        assert job_row(ledger, made).state is JobState.CANCELLED
        assert take(ledger) == []

    def test_a_chunk_that_is_a_gap_does_not_hide_another_failed_input(self, ledger: Ledger) -> None:
        made = submit(ledger, _two_inputs())
        named = take_named(ledger)
        finish(ledger, made, named["cut"], found=chunks(1))
        fail(ledger, take_one(ledger), permanent=True)
        fail(ledger, named["audio"], permanent=True)
        assert row(ledger, made, "index").state is X
        assert job_row(ledger, made).state is JobState.FAILED

    def test_a_done_job_with_gaps_names_them(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(skippable=True), 2)
        first, second = take(ledger)
        fail(ledger, first, permanent=True, message="silence")
        finish(ledger, made, second)
        run(ledger, made)
        shown = row(ledger, made, "hear[0]")
        assert (shown.state, shown.message) == (F, "silence")
        assert job_row(ledger, made).counts["hear"] == {F: 1, D: 1}
