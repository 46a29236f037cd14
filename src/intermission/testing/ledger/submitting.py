"""The contract: submitting a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from intermission.model import JobState, Task, TaskState
from intermission.testing.jobs import (
    chunks,
    fan_job,
    job,
    line_job,
    mapped,
    plan,
    reduce,
    step,
    submit,
    tasks_of,
)
from intermission.testing.ledger.suite import (
    FakeClock,
    Ledger,
    OpenLedger,
    Suite,
    fail,
    finish,
    job_row,
    run,
    states_of,
    take,
    take_one,
)

B, P = TaskState.BLOCKED, TaskState.PENDING


class Submitting(Suite):
    def test_a_new_job_is_pending_and_its_tasks_wait_for_their_inputs(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = submit(ledger, line_job())
        shown = job_row(ledger, made)
        assert shown.state is JobState.PENDING
        assert shown.job == made
        assert shown.created_ms == clock.now_ms()
        assert states_of(ledger, made) == {"fetch": P, "pack": B}

    def test_tasks_are_kept_as_they_were_given(self, ledger: Ledger) -> None:
        made = fan_job()
        tasks = [Task("hear", 0, "k0", '{"n":0}'), Task("hear", 1, "k1", '{"n":1}')]
        ledger.submit(made, iter(tasks))
        rows = list(ledger.tasks(made.key))
        assert [Task(row.step, row.index, row.key, row.chunk) for row in rows] == tasks
        assert [row.attempts for row in rows] == [0, 0]
        assert [row.name for row in rows] == ["hear[0]", "hear[1]"]

    def test_the_same_key_again_changes_nothing(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        before = (ledger.jobs(), list(ledger.tasks(made.key)), ledger.events())
        other = replace(job(step("else")), key=made.key, priority=9)
        assert not ledger.submit(other, tasks_of(other, {}))
        assert not ledger.submit(made, tasks_of(made, {}))
        assert (ledger.jobs(), list(ledger.tasks(made.key)), ledger.events()) == before

    def test_the_same_job_with_other_limits_has_these_from_now_on(self, ledger: Ledger) -> None:
        made = submit(ledger, fan_job())
        finish(ledger, made, take_one(ledger), found=chunks(3))
        before = (list(ledger.tasks(made.key)), ledger.events())
        limited = tuple(
            replace(spec, attempts=1, needs="gpu", concurrency=2) if spec.name == "hear" else spec
            for spec in made.steps
        )
        assert not ledger.submit(replace(made, steps=limited, priority=7), tasks_of(made, {}))
        assert (list(ledger.tasks(made.key)), ledger.events()) == before
        assert job_row(ledger, made).job == replace(made, steps=limited)
        assert take(ledger) == []
        leases = take(ledger, offers=["gpu"])
        assert [lease.index for lease in leases] == [0, 1]
        assert fail(ledger, leases[0]) is TaskState.FAILED

    def test_other_limits_count_for_every_connection(
        self, ledger: Ledger, open_ledger: OpenLedger
    ) -> None:
        made = submit(ledger, job(step("a"), step("b"), step("c")))
        other = open_ledger()
        assert take_one(other).step == "a"
        limited = tuple(replace(spec, needs="gpu") for spec in made.steps[:2])
        ledger.submit(replace(made, steps=(*limited, made.steps[2])), [])
        assert [lease.step for lease in take(other)] == ["c"]
        assert job_row(other, made) == job_row(ledger, made)
        other.close()

    def test_a_finished_job_submitted_again_stays_finished(self, ledger: Ledger) -> None:
        made = submit(ledger, line_job())
        run(ledger, made)
        assert not ledger.submit(made, tasks_of(made, {}))
        assert job_row(ledger, made).state is JobState.DONE
        assert take(ledger) == []

    def test_a_job_without_tasks_is_done(self, ledger: Ledger) -> None:
        made = line_job()
        assert ledger.submit(made, [])
        assert job_row(ledger, made).state is JobState.DONE

    def test_tasks_that_cannot_all_be_read_leave_no_job(self, ledger: Ledger) -> None:
        made = line_job()

        def torn() -> Iterator[Task]:
            yield tasks_of(made, {})[0]
            raise OSError("the disk went away")

        with pytest.raises(Exception, match="went away"):
            ledger.submit(made, torn())
        assert ledger.jobs() == []
        assert ledger.events() == []
        submit(ledger, made)
        assert run(ledger, made) == ["fetch", "pack"]

    def test_the_order_of_the_tasks_does_not_matter_for_their_inputs(self, ledger: Ledger) -> None:
        made = line_job()
        ledger.submit(made, reversed(tasks_of(made, {})))
        assert states_of(ledger, made) == {"pack": B, "fetch": P}

    def test_a_fan_in_submitted_before_its_plan_ran_waits_for_the_plan(
        self, ledger: Ledger
    ) -> None:
        made = job(plan("cut"), mapped("hear", "cut"), reduce("join", "hear"))
        ledger.submit(made, [Task("cut", 0, "c"), Task("join", 0, "j")])
        assert states_of(ledger, made) == {"cut": P, "join": B}
        lease = take_one(ledger)
        assert take(ledger) == []
        assert finish(ledger, made, lease, found=[]) == [True]
        assert states_of(ledger, made)["join"] is P

    def test_submission_is_the_first_event(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, line_job())
        first = ledger.events()[0]
        assert (first.job_key, first.task_id, first.was, first.now) == (
            made.key,
            None,
            None,
            "pending",
        )
        assert first.at_ms == clock.now_ms()

    def test_every_connection_sees_it(self, ledger: Ledger, open_ledger: OpenLedger) -> None:
        other = open_ledger()
        made = submit(ledger, line_job())
        assert not other.submit(made, [])
        assert take_one(other).step == "fetch"
        assert job_row(ledger, made).state is JobState.RUNNING
        other.close()
