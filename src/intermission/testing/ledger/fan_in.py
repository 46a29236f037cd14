"""The contract: fan-ins fire once, when every input has ended and every plan is done."""

from __future__ import annotations

import random
from dataclasses import replace

from intermission.model import JobState, TaskState
from intermission.testing.jobs import (
    chain_job,
    chunks,
    completion,
    fan_job,
    job,
    mapped,
    pair_job,
    plan,
    reduce,
    step,
    submit,
)
from intermission.testing.ledger.suite import (
    TTL_S,
    FakeClock,
    Ledger,
    Suite,
    events_of,
    finish,
    inputs_of,
    job_row,
    planned,
    row,
    run,
    states_of,
    take,
    take_named,
    take_one,
)

B, P, D = TaskState.BLOCKED, TaskState.PENDING, TaskState.DONE


class FanIn(Suite):
    def test_it_waits_for_every_input_and_fires_once(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 20)
        leases = take(ledger)
        random.Random(7).shuffle(leases)
        for lease in leases:
            assert row(ledger, made, "join").state is B
            assert finish(ledger, made, lease) == [True]
        join = row(ledger, made, "join")
        assert join.state is P
        assert events_of(ledger, join.id) == [("blocked", "pending")]
        finish(ledger, made, take_one(ledger))
        assert job_row(ledger, made).state is JobState.DONE

    def test_all_inputs_in_one_batch_fire_it_once(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 5)
        finish(ledger, made, *take(ledger))
        join = row(ledger, made, "join")
        assert events_of(ledger, join.id) == [("blocked", "pending")]

    def test_a_repeated_completion_does_not_count_twice(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 2)
        first, second = take(ledger)
        for _ in range(3):
            finish(ledger, made, first)
        assert finish(ledger, made, first, first) == [True, True]
        assert row(ledger, made, "join").state is B
        assert ledger.rescue() == 0
        finish(ledger, made, second)
        assert row(ledger, made, "join").state is P

    def test_a_refused_completion_does_not_count(self, ledger: Ledger, clock: FakeClock) -> None:
        made = planned(ledger, fan_job(), 2)
        old = take(ledger)
        clock.advance(TTL_S)
        ledger.rescue()
        new = take(ledger, worker="w2")
        assert finish(ledger, made, *old) == [False, False]
        finish(ledger, made, new[0])
        assert finish(ledger, made, old[0]) == [False]
        assert row(ledger, made, "join").state is B
        finish(ledger, made, new[1])
        assert row(ledger, made, "join").state is P

    def test_an_empty_plan_lets_it_start_at_once(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 0)
        join = take_one(ledger)
        assert (join.step, inputs_of(ledger, made, join)) == ("join", {"hear": ()})
        finish(ledger, made, join)
        assert job_row(ledger, made).state is JobState.DONE

    def test_an_empty_plan_without_a_fan_in_ends_the_job(self, ledger: Ledger) -> None:
        made = planned(ledger, job(plan("cut"), mapped("hear", "cut")), 0)
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_job_does_not_end_between_its_plan_and_its_chunks(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 2)
        job_events = events_of(ledger, None)
        assert job_events == [(None, "pending"), ("pending", "running")]
        assert job_row(ledger, made).state is JobState.RUNNING

    def test_the_order_of_planned_tasks_does_not_matter(self, ledger: Ledger) -> None:
        made = submit(ledger, chain_job())
        done = completion(ledger, made, take_one(ledger), chunks(2))
        backwards = list(reversed(done.tasks))
        assert ledger.complete([replace(done, tasks=backwards)]) == [True]
        assert states_of(ledger, made) == {
            "cut": D,
            "index": B,
            "read[1]": B,
            "read[0]": B,
            "sample[1]": P,
            "sample[0]": P,
        }
        assert run(ledger, made)[-1] == "index"

    def test_chunks_pass_through_a_chain_of_maps_one_by_one(self, ledger: Ledger) -> None:
        made = planned(ledger, chain_job(), 3)
        samples = take(ledger)
        finish(ledger, made, samples[1])
        assert [lease.index for lease in take(ledger) if lease.step == "read"] == [1]
        finish(ledger, made, samples[0], samples[2])
        reads = take_named(ledger)
        assert set(reads) == {"read[0]", "read[2]"}
        finish(ledger, made, *reads.values())
        assert row(ledger, made, "index").state is B

    def test_completions_out_of_order_along_a_chain(self, ledger: Ledger) -> None:
        made = planned(ledger, chain_job(), 2)
        finish(ledger, made, *take(ledger))
        reads = take(ledger)
        finish(ledger, made, reads[1])
        assert row(ledger, made, "index").state is B
        finish(ledger, made, reads[0])
        assert take_one(ledger).step == "index"

    def test_several_fan_ins_over_the_same_chunks(self, ledger: Ledger) -> None:
        made = job(
            plan("cut"),
            mapped("hear", "cut"),
            mapped("see", "cut"),
            reduce("words", "hear"),
            reduce("both", "hear", "see"),
            step("page", one=["words", "both"]),
        )
        planned(ledger, made, 2)
        named = take_named(ledger)
        finish(ledger, made, named["hear[0]"], named["hear[1]"])
        assert [lease.step for lease in take(ledger)] == ["words"]
        finish(ledger, made, named["see[1]"], named["see[0]"])
        both = take_one(ledger)
        assert both.step == "both"
        assert row(ledger, made, "page").state is B

    def test_two_plans_meet_in_one_fan_in(self, ledger: Ledger) -> None:
        made = submit(ledger, pair_job())
        plans = take_named(ledger)
        finish(ledger, made, plans["split"], found=chunks(1))
        assert set(states_of(ledger, made)) == {"cut", "split", "see[0]"}
        finish(ledger, made, take_one(ledger))
        assert job_row(ledger, made).state is JobState.RUNNING
        finish(ledger, made, plans["cut"], found=chunks(2))
        assert states_of(ledger, made)["join"] is B
        finish(ledger, made, *take(ledger))
        join = take_one(ledger)
        assert join.step == "join"
        lengths = {param: len(found) for param, found in inputs_of(ledger, made, join).items()}
        assert lengths == {"hear": 2, "see": 1}

    def test_a_plan_may_need_a_fan_in(self, ledger: Ledger) -> None:
        made = job(
            plan("cut"),
            mapped("look", "cut"),
            reduce("scenes", "look"),
            plan("split", one=["scenes"]),
            mapped("hear", "split"),
            reduce("join", "hear", "look"),
        )
        submit(ledger, made)
        ran = run(ledger, made)
        assert ran[:5] == ["cut", "look[0]", "look[1]", "look[2]", "scenes"]
        assert ran[5:] == ["split", "hear[0]", "hear[1]", "hear[2]", "join"]
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_chunk_may_need_every_chunk_of_another_step(self, ledger: Ledger) -> None:
        made = job(plan("cut"), mapped("sample", "cut"), mapped("level", "cut", every=["sample"]))
        planned(ledger, made, 2)
        first, second = take(ledger)
        finish(ledger, made, first)
        assert take(ledger) == []
        finish(ledger, made, second)
        levels = take(ledger)
        assert [lease.step for lease in levels] == ["level", "level"]
        assert [len(inputs_of(ledger, made, one)["sample"]) for one in levels] == [2, 2]

    def test_inputs_that_end_while_the_plan_runs_again_are_not_forgotten(
        self, ledger: Ledger
    ) -> None:
        made = planned(ledger, fan_job(), 2)
        leases = take(ledger)
        ledger.invalidate([row(ledger, made, "cut").id], reason="its receipt is gone")
        finish(ledger, made, *leases)
        assert row(ledger, made, "join").state is B
        cut = take_one(ledger)
        assert cut.step == "cut"
        finish(ledger, made, cut, found=chunks(2))
        assert row(ledger, made, "join").state is P

    def test_the_sweep_fires_nothing_early(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 2)
        finish(ledger, made, take_one(ledger))
        assert ledger.rescue() == 0
        assert row(ledger, made, "join").state is B
