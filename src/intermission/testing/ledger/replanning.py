"""The contract: plans that race each other, and plans that run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from intermission.errors import StalePlans
from intermission.model import Job, JobState, Renewal, TaskRow, TaskState
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
    FakeClock,
    Ledger,
    Suite,
    fail,
    finish,
    heartbeat,
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
from intermission.testing.shapes import two_stage_job

B, P, D = TaskState.BLOCKED, TaskState.PENDING, TaskState.DONE
C, F = TaskState.CANCELLED, TaskState.FAILED


def plan_again(ledger: Ledger, made: Job, found: Sequence[str], name: str = "cut") -> None:
    """Lose a plan's receipt and run it once more, with this outcome."""
    ledger.invalidate([row(ledger, made, name).id], reason="its receipt is gone")
    leases = take_named(ledger, worker="planner")
    assert finish(ledger, made, leases.pop(name), found=found) == [True]
    ledger.release([(lease.task_id, lease.fence) for lease in leases.values()], reason="not mine")


def by_name(ledger: Ledger, made: Job) -> dict[str, TaskRow]:
    return {task.name: task for task in ledger.tasks(made.key)}


class Replanning(Suite):
    def test_a_plan_comes_in_pages_and_is_closed_by_its_completion(self, ledger: Ledger) -> None:
        made = submit(ledger, fan_job())
        plan = take_one(ledger)
        done = completion(ledger, made, plan, chunks(5))
        pages = [done.tasks[:2], done.tasks[2:4], done.tasks[4:]]
        place = plan.task_id, plan.fence, plan.key
        for page in (pages[0], pages[0], pages[1]):
            assert ledger.expand(*place, page)
        counts = job_row(ledger, made).counts
        assert counts == {"cut": {TaskState.LEASED: 1}, "hear": {P: 4}}
        early = take(ledger, 3)
        assert [lease.index for lease in early] == [0, 1, 2]
        finish(ledger, made, *early)
        assert ledger.expand(*place, pages[0]), "again, after a crash"
        totals = {"hear": 5}
        assert ledger.complete([replace(done, tasks=pages[2], totals=totals)]) == [True]
        assert not ledger.expand(*place, pages[0]), "it is closed"
        shown = job_row(ledger, made).counts
        assert shown == {"cut": {D: 1}, "hear": {D: 3, P: 2}, "join": {B: 1}}
        finish(ledger, made, *take(ledger))
        assert take_one(ledger).step == "join"

    def test_a_fan_in_does_not_start_before_its_plan_is_closed(self, ledger: Ledger) -> None:
        made = submit(ledger, fan_job())
        plan = take_one(ledger)
        done = completion(ledger, made, plan, chunks(2))
        join = [task for task in done.tasks if task.step == "join"]
        assert ledger.expand(plan.task_id, plan.fence, plan.key, [*join, done.tasks[0]])
        finish(ledger, made, take_one(ledger))
        assert row(ledger, made, "join").state is B
        assert ledger.rescue() == 0
        assert take(ledger) == []
        assert ledger.complete([done]) == [True]
        finish(ledger, made, take_one(ledger))
        assert take_one(ledger).step == "join"

    def test_a_page_also_sends_back_what_hangs_on_what_was_made_of_all(
        self, ledger: Ledger
    ) -> None:
        made = submit(ledger, two_stage_job())
        ledger.complete([completion(ledger, made, take_one(ledger), chunks(0))])
        finish(ledger, made, take_one(ledger))
        before = by_name(ledger, made)
        assert (before["scenes"].state, before["split"].state) == (D, P)
        ledger.invalidate([before["cut"].id], reason="gone")
        plan = take_named(ledger)["cut"]
        done = completion(ledger, made, plan, chunks(1))
        assert ledger.expand(plan.task_id, plan.fence, plan.key, done.tasks[:1])
        states = states_of(ledger, made)
        assert (states["scenes"], states["split"]) == (B, B)

    def test_a_page_sends_back_what_hangs_on_the_one_task_that_it_replaces(
        self, ledger: Ledger
    ) -> None:
        made = submit(ledger, two_stage_job())
        ledger.complete([completion(ledger, made, take_one(ledger), chunks(0))])
        finish(ledger, made, take_one(ledger))
        ledger.complete([completion(ledger, made, take_one(ledger), chunks(0))])
        before = by_name(ledger, made)
        assert (before["scenes"].state, before["split"].state) == (D, D)
        ledger.invalidate([before["cut"].id], reason="gone")
        plan = take_named(ledger)["cut"]
        other = completion(ledger, made, plan, chunks(1)).tasks
        scenes = [task for task in other if task.step == "scenes"]
        assert ledger.expand(plan.task_id, plan.fence, plan.key, scenes)
        states = states_of(ledger, made)
        assert (states["scenes"], states["split"]) == (B, B)

    def test_a_page_sends_back_what_was_made_of_a_chunk_that_it_replaces(
        self, ledger: Ledger
    ) -> None:
        marks = mapped("mark", "cut", same=["hear"])
        steps = plan("cut"), mapped("hear", "cut", attempts=1), marks, reduce("join", "mark")
        made = planned(ledger, job(*steps), 3)
        good, bad, last = take(ledger)
        finish(ledger, made, good, last)
        fail(ledger, bad, permanent=True)
        finish(ledger, made, *take(ledger))
        states = states_of(ledger, made)
        assert [states[f"mark[{n}]"] for n in range(3)] == [D, C, D]
        ledger.invalidate([by_name(ledger, made)["cut"].id], reason="gone")
        again = take_one(ledger)
        found = [*chunks(2), *chunks(1, salt="other")]
        tasks = completion(ledger, made, again, found).tasks
        hears = [task for task in tasks if task.step == "hear"]
        assert ledger.expand(again.task_id, again.fence, again.key, hears)
        states = states_of(ledger, made)
        assert [states[f"hear[{n}]"] for n in range(3)] == [D, F, P]
        assert [states[f"mark[{n}]"] for n in range(3)] == [D, C, B]
        assert states["join"] is C, "it can never start"

    def test_a_page_of_another_plan_replaces_and_blocks_what_was_made_of_all(
        self, ledger: Ledger
    ) -> None:
        made = planned(ledger, fan_job(), 3)
        finish(ledger, made, *take(ledger))
        finish(ledger, made, take_one(ledger))
        before = by_name(ledger, made)
        ledger.invalidate([before["cut"].id], reason="gone")
        plan = take_one(ledger)
        done = completion(ledger, made, plan, chunks(3))
        assert ledger.expand(plan.task_id, plan.fence, plan.key, done.tasks)
        assert by_name(ledger, made)["join"] == before["join"], "nothing is new"
        other = completion(ledger, made, plan, [*chunks(1), *chunks(1, salt="other")])
        assert ledger.expand(plan.task_id, plan.fence, plan.key, other.tasks[:2])
        states = states_of(ledger, made)
        assert (states["hear[0]"], states["hear[1]"], states["join"]) == (D, P, B)
        last = replace(other, tasks=other.tasks[2:], totals={"hear": 2})
        assert ledger.complete([last]) == [True]
        assert set(states_of(ledger, made)) == {"cut", "hear[0]", "hear[1]", "join"}
        assert job_row(ledger, made).counts["hear"] == {D: 1, P: 1}
        finish(ledger, made, take_one(ledger))
        assert len(inputs_of(ledger, made, take_one(ledger))["hear"]) == 2

    def test_a_page_of_a_lost_lease_is_refused(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, fan_job())
        plan = take_one(ledger)
        done = completion(ledger, made, plan, chunks(2))
        clock.advance(61)
        ledger.rescue()
        assert ledger.expand(plan.task_id, plan.fence, plan.key, done.tasks[:1]), (
            "nobody has it since"
        )
        take_one(ledger, worker="w2")
        assert not ledger.expand(plan.task_id, plan.fence, plan.key, done.tasks)
        assert not ledger.expand(99, 1, plan.key, done.tasks)
        assert not ledger.expand(plan.task_id, plan.fence + 1, "another", done.tasks)
        assert list(states_of(ledger, made)) == ["cut", "hear[0]"]

    def test_a_page_knows_of_inputs_that_stopped(self, ledger: Ledger) -> None:
        made = job(step("audio"), plan("cut"), mapped("hear", "cut", one=["audio"]))
        submit(ledger, made)
        named = take_named(ledger)
        done = completion(ledger, made, named["cut"], chunks(2))
        fail(ledger, named["audio"], permanent=True)
        cut = named["cut"]
        assert ledger.expand(cut.task_id, cut.fence, cut.key, done.tasks[:1])
        assert row(ledger, made, "hear[0]").state is TaskState.CANCELLED

    def test_a_plan_that_did_not_know_of_another_is_stale(self, ledger: Ledger) -> None:
        made = submit(ledger, pair_job())
        plans = take_named(ledger)
        alone = completion(ledger, made, plans["split"], chunks(1))
        finish(ledger, made, plans["cut"], found=chunks(2))
        hear = take_one(ledger)
        before = (ledger.events(), list(ledger.tasks(made.key)), ledger.jobs())
        with pytest.raises(StalePlans):
            ledger.complete([completion(ledger, made, hear), alone])
        assert (ledger.events(), list(ledger.tasks(made.key)), ledger.jobs()) == before
        both = completion(ledger, made, plans["split"], chunks(1))
        assert ledger.complete([completion(ledger, made, hear), both]) == [True, True]
        assert states_of(ledger, made)["join"] is B
        run(ledger, made)
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_plan_that_finds_the_same_again_sends_nobody_back(self, ledger: Ledger) -> None:
        """Not even when it was away as another ended, and only now there is the last fan-in."""
        made = planned(ledger, two_stage_job(), 1)
        for _ in ("look", "scenes"):
            finish(ledger, made, take_one(ledger))
        ledger.invalidate([row(ledger, made, "cut").id], reason="its receipt is gone")
        plans = take_named(ledger)
        finish(ledger, made, plans["split"], found=chunks(1))
        finish(ledger, made, plans["cut"], found=chunks(1))
        expected = {"cut": D, "look[0]": D, "scenes": D, "split": D, "hear[0]": P, "join": B}
        assert states_of(ledger, made) == expected
        run(ledger, made)
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_plan_that_knew_of_one_that_is_not_done_is_stale(self, ledger: Ledger) -> None:
        made = submit(ledger, pair_job())
        plans = take_named(ledger)
        done = completion(ledger, made, plans["cut"], chunks(2))
        with pytest.raises(StalePlans):
            ledger.complete([replace(done, plans=frozenset({"cut", "split"}))])
        with pytest.raises(StalePlans):
            ledger.complete([replace(done, plans=frozenset())])
        assert states_of(ledger, made) == {"cut": TaskState.LEASED, "split": TaskState.LEASED}
        assert ledger.complete([done]) == [True]

    def test_plans_in_one_batch_count_in_their_order(self, ledger: Ledger) -> None:
        made = submit(ledger, pair_job())
        plans = take_named(ledger)
        cut = completion(ledger, made, plans["cut"], chunks(1))
        split = completion(ledger, made, plans["split"], chunks(1))
        with pytest.raises(StalePlans):
            ledger.complete([cut, split])
        assert states_of(ledger, made) == {"cut": TaskState.LEASED, "split": TaskState.LEASED}
        assert ledger.complete([cut]) == [True]
        later = completion(ledger, made, plans["split"], chunks(1))
        assert ledger.complete([later, cut]) == [True, True]

    def test_a_repeated_plan_is_a_repeat_even_when_others_finished_since(
        self, ledger: Ledger
    ) -> None:
        made = submit(ledger, pair_job())
        plans = take_named(ledger)
        cut = completion(ledger, made, plans["cut"], chunks(2))
        ledger.complete([cut])
        finish(ledger, made, plans["split"], found=chunks(2))
        before = (ledger.events(), list(ledger.tasks(made.key)))
        assert ledger.complete([cut]) == [True]
        assert (ledger.events(), list(ledger.tasks(made.key))) == before

    def test_a_refused_plan_adds_nothing(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, fan_job())
        old = take_one(ledger)
        clock.advance(60)
        ledger.rescue()
        new = take_one(ledger, worker="w2")
        assert finish(ledger, made, old, found=chunks(9)) == [False]
        stale = replace(completion(ledger, made, old, chunks(9)), plans=frozenset({"else"}))
        assert ledger.complete([stale]) == [False]
        assert set(states_of(ledger, made)) == {"cut"}
        finish(ledger, made, new, found=chunks(1))
        assert finish(ledger, made, old, found=chunks(9)) == [False]
        assert set(states_of(ledger, made)) == {"cut", "hear[0]", "join"}

    def test_the_same_chunks_again_change_no_task(self, ledger: Ledger) -> None:
        made = planned(ledger, chain_job(), 3)
        finish(ledger, made, *take(ledger, 2))
        held = take_named(ledger)
        before = by_name(ledger, made)
        plan_again(ledger, made, chunks(3))
        after = by_name(ledger, made)
        assert {name: task for name, task in after.items() if name != "cut"} == {
            name: task for name, task in before.items() if name != "cut"
        }
        assert finish(ledger, made, *held.values()) == [True] * 3
        run(ledger, made)
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_finished_job_planned_again_alike_ends_again(self, ledger: Ledger) -> None:
        made = submit(ledger, fan_job())
        run(ledger, made)
        plan_again(ledger, made, chunks(3))
        assert job_row(ledger, made).state is JobState.DONE
        assert take(ledger) == []

    def test_more_chunks_are_added_and_the_fan_in_starts_afresh(self, ledger: Ledger) -> None:
        made = submit(ledger, fan_job())
        run(ledger, made)
        before = by_name(ledger, made)
        plan_again(ledger, made, chunks(4))
        after = by_name(ledger, made)
        assert [after[f"hear[{n}]"].state for n in range(4)] == [D, D, D, P]
        assert after["join"].state is B
        assert after["join"].key != before["join"].key
        assert after["join"].fence > before["join"].fence
        assert outputs_of(ledger, made, "join") == [None]
        assert job_row(ledger, made).state is JobState.RUNNING
        assert run(ledger, made) == ["hear[3]", "join"]
        assert job_row(ledger, made).state is JobState.DONE

    def test_fewer_chunks_remove_the_rest_along_the_chain(self, ledger: Ledger) -> None:
        made = planned(ledger, chain_job(), 3)
        finish(ledger, made, *take(ledger))
        held = take_named(ledger)
        plan_again(ledger, made, chunks(1))
        assert set(states_of(ledger, made)) == {"cut", "sample[0]", "read[0]", "index"}
        removed = held["read[2]"]
        assert finish(ledger, made, removed) == [False]
        assert heartbeat(ledger, removed) == Renewal(lost=frozenset({removed.task_id}))
        assert finish(ledger, made, held["read[0]"]) == [True]
        index = take_one(ledger)
        assert index.step == "index"
        assert len(inputs_of(ledger, made, index)["read"]) == 1

    def test_chunks_nobody_had_claimed_are_removed_too(self, ledger: Ledger) -> None:
        made = planned(ledger, chain_job(), 3)
        ledger.invalidate([row(ledger, made, "cut").id], reason="its receipt is gone")
        finish(ledger, made, take_one(ledger), found=chunks(1))
        assert run(ledger, made) == ["sample[0]", "read[0]", "index"]
        assert job_row(ledger, made).state is JobState.DONE

    def test_no_chunks_at_all_any_more(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 3)
        plan_again(ledger, made, [])
        assert states_of(ledger, made) == {"cut": D, "join": P}
        run(ledger, made)
        assert job_row(ledger, made).state is JobState.DONE

    def test_other_chunks_start_afresh_and_old_holders_are_refused(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 3)
        done, running, leased = take(ledger)
        finish(ledger, made, done)
        heartbeat(ledger, running)
        before = by_name(ledger, made)
        plan_again(ledger, made, chunks(3, salt="other"))
        after = by_name(ledger, made)
        for n in range(3):
            old, new = before[f"hear[{n}]"], after[f"hear[{n}]"]
            assert (new.state, new.attempts, new.chunk) == (P, 0, chunks(3, salt="other")[n])
            assert new.key != old.key
            assert (new.id != old.id) or (new.fence > old.fence)
        assert outputs_of(ledger, made, "hear") == [None, None, None]
        assert finish(ledger, made, done, running, leased) == [False, False, False]
        assert heartbeat(ledger, running, leased).lost == {running.task_id, leased.task_id}
        assert run(ledger, made) == ["hear[0]", "hear[1]", "hear[2]", "join"]

    def test_one_other_chunk_replaces_what_hangs_on_it_alone(self, ledger: Ledger) -> None:
        made = submit(ledger, chain_job())
        run(ledger, made)
        mixed = [*chunks(2), chunks(3, salt="other")[2]]
        plan_again(ledger, made, mixed)
        assert states_of(ledger, made) == {
            "cut": D,
            "sample[0]": D,
            "sample[1]": D,
            "sample[2]": P,
            "read[0]": D,
            "read[1]": D,
            "read[2]": B,
            "index": B,
        }
        assert run(ledger, made) == ["sample[2]", "read[2]", "index"]
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_lease_of_a_removed_task_never_fits_the_one_in_its_place(
        self, ledger: Ledger
    ) -> None:
        made = planned(ledger, fan_job(), 2)
        zombie = take(ledger)[1]
        plan_again(ledger, made, chunks(1))
        plan_again(ledger, made, chunks(2))
        again = take_named(ledger, worker="w2")["hear[1]"]
        assert finish(ledger, made, zombie) == [False]
        assert heartbeat(ledger, zombie).lost == {zombie.task_id}
        assert finish(ledger, made, again) == [True]
        assert finish(ledger, made, zombie) == [False]

    def test_one_of_two_plans_runs_again(self, ledger: Ledger) -> None:
        made = submit(ledger, pair_job())
        run(ledger, made)
        plan_again(ledger, made, chunks(2, salt="other"))
        states = states_of(ledger, made)
        assert [states[f"see[{n}]"] for n in range(3)] == [D, D, D]
        assert (states["hear[0]"], states["hear[1]"], states["join"]) == (P, P, B)
        assert "hear[2]" not in states
        assert run(ledger, made) == ["hear[0]", "hear[1]", "join"]
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_fan_in_does_not_run_on_what_was_planned_before(self, ledger: Ledger) -> None:
        for n, (at_first, found) in enumerate(
            [
                (chunks(2), chunks(2, salt="other")),
                (chunks(2), chunks(1)),
                (chunks(2), chunks(3)),
                ([], chunks(1)),
                (chunks(1), []),
            ]
        ):
            made = submit(ledger, pair_job(key=f"job{n}"))
            while (named := take_named(ledger, jobs=[made.key])) and "join" not in named:
                for lease in named.values():
                    finish(ledger, made, lease, found=at_first)
            plans = [row(ledger, made, name).id for name in ("cut", "split")]
            ledger.invalidate(plans, reason="their receipts are gone")
            cut = take_named(ledger, worker="w2", jobs=[made.key])["cut"]
            # With `split` still to run again, nobody can name the fan-in's new task yet.
            assert finish(ledger, made, cut, found=found) == [True]
            assert row(ledger, made, "join").state is B
            assert finish(ledger, made, named["join"]) == [False]

    def test_a_plan_that_fails_when_it_runs_again_ends_the_job(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 2)
        hears = take(ledger)
        ledger.invalidate([row(ledger, made, "cut").id], reason="its receipt is gone")
        cut = take_one(ledger)
        assert fail(ledger, cut, permanent=True) is TaskState.FAILED
        finish(ledger, made, *hears)
        assert row(ledger, made, "join").state is TaskState.CANCELLED
        assert job_row(ledger, made).state is JobState.FAILED
        assert ledger.retry(made.key, [cut.task_id]) == 2
        assert run(ledger, made) == ["cut", "hear[2]", "join"]
        assert job_row(ledger, made).state is JobState.DONE

    def test_what_waits_for_a_plan_that_was_cancelled_is_cancelled(self, ledger: Ledger) -> None:
        made = job(
            step("scenes"),
            plan("split", one=["scenes"]),
            mapped("hear", "split"),
            reduce("join", "hear"),
        )
        submit(ledger, made)
        for _ in range(2):  # scenes, split
            finish(ledger, made, take_one(ledger), found=chunks(1))
        hear = take_one(ledger)
        scenes = row(ledger, made, "scenes")
        ledger.invalidate([scenes.id], reason="its bytes are gone")
        fail(ledger, take_one(ledger), permanent=True)
        finish(ledger, made, hear)
        states = states_of(ledger, made)
        assert (states["split"], states["join"]) == (TaskState.CANCELLED, TaskState.CANCELLED)
        assert row(ledger, made, "join").message == "scenes failed"
        assert job_row(ledger, made).state is JobState.FAILED
        assert ledger.retry(made.key, [scenes.id]) == 3
        assert run(ledger, made, found=chunks(1)) == ["scenes", "split", "join"]
        assert job_row(ledger, made).state is JobState.DONE

    def test_a_failed_plan_leaves_alone_what_has_its_inputs(self, ledger: Ledger) -> None:
        made = job(plan("cut"), mapped("look", "cut"), reduce("scenes", "look"))
        made = replace(made, steps=(*made.steps, step("title", one=["scenes"])))
        submit(ledger, made)
        for _ in range(3):  # cut, look[0], scenes
            finish(ledger, made, take_one(ledger), found=chunks(1))
        title = take_one(ledger)
        ledger.invalidate([row(ledger, made, "cut").id], reason="its receipt is gone")
        assert fail(ledger, take_one(ledger), permanent=True) is TaskState.FAILED
        assert finish(ledger, made, title) == [True]
        states = states_of(ledger, made)
        assert (states["scenes"], states["title"]) == (D, D)
        assert job_row(ledger, made).state is JobState.FAILED
