"""The contract: an end is recorded and the next task claimed, in one transaction."""

from __future__ import annotations

from typing import Any

import pytest

from intermission.errors import StalePlans
from intermission.model import Job, JobState, Lease, Limit, TaskState
from intermission.ports.ledger import Ask
from intermission.testing.jobs import (
    chunks,
    completion,
    fan_job,
    job,
    line_job,
    pair_job,
    step,
    submit,
)
from intermission.testing.ledger.suite import (
    TTL_S,
    FakeClock,
    Ledger,
    Suite,
    finish,
    job_row,
    planned,
    row,
    take,
    take_one,
)


def _complete_and_claim(
    ledger: Ledger, made: Job, *leases: Lease, capacity: int = 1, **options: Any
) -> tuple[list[bool], list[Lease]]:
    done = [completion(ledger, made, lease) for lease in leases]
    return ledger.complete_and_claim(done, Ask("w1", capacity, TTL_S, **options))


class CompletingAndClaiming(Suite):
    def test_the_next_task_of_the_job_comes_with_the_end(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, line_job())
        accepted, (lease,) = _complete_and_claim(ledger, made, take_one(ledger))
        assert accepted == [True]
        assert (lease.step, lease.fence, lease.attempt) == ("pack", 1, 1)
        assert row(ledger, made, "fetch").state is TaskState.DONE
        shown = row(ledger, made, "pack")
        assert (shown.state, shown.worker) == (TaskState.LEASED, "w1")
        assert take(ledger) == []
        clock.advance(TTL_S / 2)
        assert ledger.rescue() == 0, "its lease is as long as any"
        assert _complete_and_claim(ledger, made, lease) == ([True], [])
        assert job_row(ledger, made).state is JobState.DONE

    def test_chunks_come_as_many_as_are_asked_for(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 5)
        first = take_one(ledger)
        accepted, leases = _complete_and_claim(ledger, made, first, capacity=2)
        assert accepted == [True]
        assert [lease.index for lease in leases] == [1, 2]
        assert _complete_and_claim(ledger, made, *leases, capacity=0) == ([True, True], [])
        assert [lease.index for lease in take(ledger)] == [3, 4]

    def test_a_job_whose_turn_it_is_comes_first(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        lease = take_one(ledger)
        other = submit(ledger, line_job(key="other", priority=1))
        assert _complete_and_claim(ledger, made, lease) == ([True], [])
        assert row(ledger, made, "fetch").state is TaskState.DONE
        assert take_one(ledger).job_key == other.key
        assert take_one(ledger).job_key == made.key

    def test_where_there_are_limits_a_claim_must_be_asked_for(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        ledger.limit(Limit("pipeline:another", running=1))
        assert _complete_and_claim(ledger, made, take_one(ledger)) == ([True], [])
        assert take_one(ledger).step == "pack"

    def test_a_limited_step_must_be_asked_for(self, ledger: Ledger) -> None:
        made = submit(ledger, job(step("a"), step("b", one=["a"], concurrency=1)))
        assert _complete_and_claim(ledger, made, take_one(ledger)) == ([True], [])
        assert take_one(ledger).step == "b"

    def test_only_what_the_worker_can_run_is_handed_over(self, ledger: Ledger) -> None:
        made = submit(ledger, job(step("a"), step("b", one=["a"], needs="gpu")))
        lease = take_one(ledger)
        assert _complete_and_claim(ledger, made, lease) == ([True], [])
        (next_one,) = take(ledger, offers=["gpu"])
        assert next_one.step == "b"

    def test_a_stale_end_brings_nothing(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        late = take_one(ledger)
        ledger.rescue(["w1"])
        again = take_one(ledger, worker="w2")
        assert _complete_and_claim(ledger, made, late) == ([False], [])
        assert finish(ledger, made, again) == [True]
        assert _complete_and_claim(ledger, made, again) == ([True], []), "a repeat"
        assert take_one(ledger).step == "pack"

    def test_a_plan_hands_its_first_chunk_over(self, ledger: Ledger) -> None:
        made = submit(ledger, fan_job())
        done = completion(ledger, made, take_one(ledger), chunks(3))
        accepted, leases = ledger.complete_and_claim([done], Ask("w1", 2, TTL_S))
        assert accepted == [True]
        assert [(lease.step, lease.index) for lease in leases] == [("hear", 0), ("hear", 1)]

    def test_stale_plans_change_nothing(self, ledger: Ledger) -> None:
        made = submit(ledger, pair_job())
        cut, split = take(ledger)
        stale = completion(ledger, made, cut, chunks(2))
        assert finish(ledger, made, split, found=chunks(2)) == [True]
        with pytest.raises(StalePlans):
            ledger.complete_and_claim([stale], Ask("w1", 1, TTL_S))
        assert row(ledger, made, "cut").state in (TaskState.LEASED, TaskState.RUNNING)

    def test_nothing_ended_and_nothing_is_handed_over(self, ledger: Ledger) -> None:
        submit(ledger, line_job())
        assert ledger.complete_and_claim([], Ask("w1", 1, TTL_S)) == ([], [])
