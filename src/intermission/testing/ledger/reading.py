"""The contract: what the reads show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from intermission.model import Completion, JobState, Output, Source, TaskState
from intermission.ports.ledger import outputs_at
from intermission.testing.jobs import (
    chain_job,
    chunks,
    completion,
    fan_job,
    job,
    line_job,
    step,
    submit,
)
from intermission.testing.ledger.history import all_events
from intermission.testing.ledger.suite import (
    FakeClock,
    Ledger,
    OpenLedger,
    Suite,
    fail,
    finish,
    job_row,
    outputs_of,
    planned,
    row,
    run,
    take,
    take_one,
)


class Reading(Suite):
    def test_jobs_newest_first_by_prefix(self, ledger: Ledger, clock: FakeClock) -> None:
        for key in ("ab1", "ab2", "a%", "cd"):
            submit(ledger, line_job(key=key))
            clock.jump_wall(-3600)  # the order is that of submission, whatever the clock said
        assert [shown.job.key for shown in ledger.jobs()] == ["cd", "a%", "ab2", "ab1"]
        assert [shown.job.key for shown in ledger.jobs("ab")] == ["ab2", "ab1"]
        assert [shown.job.key for shown in ledger.jobs("a%")] == ["a%"]
        assert [shown.job.key for shown in ledger.jobs("a_")] == []

    def test_jobs_in_pages_of_those_that_fit(self, ledger: Ledger) -> None:
        for n in range(8):
            made = line_job(key=f"{'ab'[n % 2]}{n}", pipeline="read" if n in (2, 6) else "hear")
            submit(ledger, replace(made, source=Source(f"file:///{n % 4}", "f")))
        for key in ("a2", "b3", "a4"):
            ledger.cancel(key, reason="no")

        def page(prefix: str = "", **which: Any) -> str:
            return " ".join(row.job.key for row in ledger.jobs(prefix, **which))

        assert page(limit=3) == "b7 a6 b5"
        last = ledger.jobs(limit=3)[-1].id
        assert page(limit=3, before=last) == "a4 b3 a2"
        assert page(before=last) == "a4 b3 a2 b1 a0"
        assert page(limit=0) == ""
        assert page("b", limit=2) == "b7 b5"
        assert page("b", limit=2, before=last) == "b3 b1"
        assert page("b", states=[JobState.CANCELLED], source="file:///3") == "b3"
        assert page("a", pipeline="read", limit=1) == "a6"
        assert page(states=[JobState.CANCELLED]) == "a4 b3 a2"
        assert page(states=[JobState.CANCELLED], limit=1, before=last) == "a4"
        both = [JobState.PENDING, JobState.CANCELLED, JobState.PENDING]
        assert page(states=both, limit=5, before=last) == "a4 b3 a2 b1 a0"
        assert page(states=[JobState.DONE]) == ""
        assert page(pipeline="read") == "a6 a2"
        assert page(pipeline="hear", limit=3) == "b7 b5 a4"
        assert page(pipeline="hear", limit=3, before=last) == "a4 b3 b1"
        assert page(pipeline="hear", states=[JobState.CANCELLED]) == "a4 b3"
        assert page(source="file:///2") == "a6 a2"
        assert page(source="file:///2", limit=1) == "a6"
        assert page(source="file:///2", states=[JobState.CANCELLED], pipeline="read") == "a2"
        assert page(source="file:///2", pipeline="hear") == ""
        assert page(source="file:///9") == ""
        (shown,) = ledger.jobs(source="file:///2", limit=1)
        assert shown.total(TaskState.PENDING) == 1

    def test_a_job_comes_back_as_it_was_submitted(self, ledger: Ledger) -> None:
        made = job(
            step("a", needs="gpu", timeout_s=1.5, retry_delays_s=(1.0, 2.0), params=("x",)),
            step("b", one=["a"], concurrency=2, durable=False, publish="{index}.txt"),
            priority=-3,
        )
        submit(ledger, made)
        assert job_row(ledger, made).job == made

    def test_jobs_count_their_tasks(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 4)
        first, second, _ = take(ledger, 3)
        finish(ledger, made, first)
        fail(ledger, second, delay_s=5)
        shown = job_row(ledger, made)
        assert shown.total() == 6
        assert shown.total(TaskState.DONE) == 2
        assert shown.counts["hear"][TaskState.RETRYING] == 1
        assert shown.total(TaskState.LEASED, TaskState.PENDING) == 2

    def test_a_job_says_when_it_changed(self, ledger: Ledger, clock: FakeClock) -> None:
        made = submit(ledger, line_job())
        created_ms = clock.now_ms()
        clock.advance(5)
        ledger.cancel(made.key, reason="no")
        shown = job_row(ledger, made)
        assert (shown.created_ms, shown.updated_ms) == (created_ms, clock.now_ms())

    def test_tasks_by_state_and_step(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 3)
        take(ledger, 2)
        names = [task.name for task in ledger.tasks(made.key)]
        assert names == ["cut", "hear[0]", "hear[1]", "hear[2]", "join"]
        leased = ledger.tasks(made.key, states={TaskState.LEASED})
        assert [task.name for task in leased] == ["hear[0]", "hear[1]"]
        waiting = ledger.tasks(made.key, states=[TaskState.PENDING, TaskState.BLOCKED])
        assert [task.name for task in waiting] == ["hear[2]", "join"]
        of_step = ledger.tasks(made.key, step="hear", states=[TaskState.PENDING])
        assert [task.name for task in of_step] == ["hear[2]"]
        assert [task.name for task in ledger.tasks(made.key, step="join")] == ["join"]

    def test_receipts_are_those_of_done_tasks_with_artifacts(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 4)
        with_files, without, light, held = take(ledger)
        done = completion(ledger, made, with_files, files=2)
        ledger.complete([done, completion(ledger, made, without)])
        ledger.complete([Completion(light.task_id, light.fence, "1")])
        assert done.receipt is not None
        expected = [
            (row(ledger, made, "hear[0]"), Output(with_files.key, done.result, done.receipt.files))
        ]
        assert list(ledger.receipts(made.key)) == expected
        ledger.invalidate([with_files.task_id], reason="gone")
        assert list(ledger.receipts(made.key)) == []
        finish(ledger, made, held, files=1)
        assert [task.name for task, _ in ledger.receipts(made.key)] == ["hear[3]"]

    def test_outputs_in_chunk_order(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 12)
        leases = take(ledger)
        finish(ledger, made, *reversed(leases[1:]))
        outputs = outputs_of(ledger, made, "hear")
        assert [output and output.task_key for output in outputs] == [
            None,
            *(lease.key for lease in leases[1:]),
        ]
        assert outputs_of(ledger, made, "join") == [None]

    def test_tasks_outputs_and_receipts_come_in_pages(self, ledger: Ledger) -> None:
        made = planned(ledger, chain_job(), 7)
        while leases := [one for one in take(ledger) if one.index != 4 or one.step != "sample"]:
            finish(ledger, made, *leases, files=1)
        whole = ledger.tasks(made.key)
        assert len(whole) == 16
        for size in (1, 3, 16):
            assert _walk(ledger.tasks, made.key, size, lambda row: row.id) == whole
            done = [row for row in whole if row.state is TaskState.DONE]
            some = _walk(
                lambda key, **page: ledger.tasks(key, states=[TaskState.DONE], **page),
                made.key,
                size,
                lambda row: row.id,
            )
            assert some == done
            receipts = _walk(ledger.receipts, made.key, size, lambda pair: pair[0].id)
            assert receipts == ledger.receipts(made.key)
            assert len(receipts) == len(done) - 1, "the plan has none"
        made_by = ledger.outputs(made.key, "sample")
        assert [one.index for one in made_by] == list(range(7))
        assert [one.state for one in made_by if one.output is None] == [TaskState.LEASED]
        assert ledger.outputs(made.key, "sample", after=2, limit=3) == made_by[3:6]
        assert ledger.outputs(made.key, "sample", after=6) == []
        some = outputs_at(ledger, made.key, "sample", [6, 0, 2, 1])
        assert list(some) == [*made_by[:3], made_by[6]]
        assert ledger.outputs(made.key, "nobody") == []

    def test_unknown_jobs(self, ledger: Ledger) -> None:
        submit(ledger, line_job())
        assert ledger.jobs("nobody") == []
        assert list(ledger.tasks("nobody")) == []
        assert list(ledger.tasks("nobody", step="fetch")) == []
        assert list(ledger.receipts("nobody")) == []
        assert ledger.outputs("nobody", "fetch") == []
        assert ledger.retry("nobody") == 0
        assert not ledger.cancel("nobody", reason="no")
        assert not ledger.delete("nobody")
        assert not ledger.mark("nobody", JobState.RUNNING)
        assert ledger.deferred("nothing") is None

    def test_events_tell_who_did_what(self, ledger: Ledger, clock: FakeClock) -> None:
        made = planned(ledger, fan_job(), 1)
        clock.advance(1)
        lease = take_one(ledger, worker="w9")
        claimed = ledger.events(limit=100)[-1]
        assert (claimed.job_key, claimed.task, claimed.task_id) == (
            made.key,
            "hear[0]",
            lease.task_id,
        )
        assert (claimed.was, claimed.now, claimed.fence) == ("pending", "leased", lease.fence)
        assert (claimed.worker, claimed.at_ms) == ("w9", clock.now_ms())
        fail(ledger, lease, permanent=True, message="no sound")
        failed = next(e for e in ledger.events() if e.now == "failed" and e.task_id)
        assert (failed.was, failed.message, failed.fence) == ("leased", "no sound", lease.fence)

    def test_events_are_read_by_cursor(self, ledger: Ledger, open_ledger: OpenLedger) -> None:
        made = submit(ledger, fan_job())
        run(ledger, made)
        everything = ledger.events()
        assert len(everything) > 10
        assert [event.seq for event in everything] == sorted({event.seq for event in everything})
        paged = [*ledger.events(limit=4), *ledger.events(everything[3].seq, limit=1000)]
        assert paged == everything
        assert ledger.events(everything[-1].seq) == []
        assert ledger.events(0, limit=3) == everything[:3]
        other = open_ledger()
        assert list(all_events(other)) == everything
        other.close()

    def test_events_of_one_job_are_read_alone(self, ledger: Ledger) -> None:
        one, other = (submit(ledger, fan_job(key=key)) for key in ("one", "other"))
        for made in (one, other, one):
            run(ledger, made)
        everything = ledger.events(limit=10_000)
        for made in (one, other):
            own = [event for event in everything if event.job_key == made.key]
            assert ledger.events(job=made.key) == own
            assert ledger.events(own[4].seq, job=made.key, limit=3) == own[5:8]
        assert ledger.events(job="nobody") == []
        told = {(event.task, event.step, event.index) for event in own if event.task}
        assert {("cut", "cut", 0), ("hear[2]", "hear", 2), ("join", "join", 0)} <= told

    def test_a_batch_is_read_event_by_event_from_anywhere(
        self, ledger: Ledger, clock: FakeClock
    ) -> None:
        made = planned(ledger, fan_job(), 5)
        fail(ledger, take_one(ledger), delay_s=0)
        clock.advance(1)
        leases = take(ledger, 4)  # a second try among first ones
        assert {lease.attempt for lease in leases} == {1, 2}
        assert finish(ledger, made, *leases) == [True] * 4
        everything = ledger.events()
        told = [(event.task_id, event.fence, event.now) for event in everything[-8:]]
        ids = [(lease.task_id, lease.fence) for lease in leases]
        assert sorted(told[:4]) == sorted((*held, "leased") for held in ids)
        assert sorted(told[4:]) == sorted((*held, "done") for held in ids)
        for at, event in enumerate(everything):
            assert ledger.events(event.seq, limit=3) == everything[at + 1 : at + 4]

    def test_a_cursor_outlives_a_forgotten_job(self, ledger: Ledger) -> None:
        made = planned(ledger, fan_job(), 5)
        assert finish(ledger, made, *take(ledger, 3)) == [True] * 3
        seen = ledger.events()[-1].seq
        assert ledger.delete(made.key)
        other = submit(ledger, line_job(key="other"))
        take_one(ledger)
        told = sorted((event.job_key, event.now) for event in ledger.events(seen))
        assert told == [(other.key, now) for now in ("leased", "pending", "running")]

    def test_a_whole_job_in_events(self, ledger: Ledger) -> None:
        made = submit(ledger, fan_job())
        run(ledger, made, found=chunks(1))
        told = [(event.task or "job", event.was, event.now) for event in ledger.events()]
        assert sorted(told, key=str) == sorted(
            [
                ("job", None, "pending"),
                ("job", "pending", "running"),
                ("cut", "pending", "leased"),
                ("cut", "leased", "done"),
                ("hear[0]", "pending", "leased"),
                ("hear[0]", "leased", "done"),
                ("join", "blocked", "pending"),
                ("join", "pending", "leased"),
                ("join", "leased", "done"),
                ("job", "running", "done"),
            ],
            key=str,
        )
        assert told[-1] == ("job", "running", "done")

    def test_held_leases_outlive_a_connection(
        self, ledger: Ledger, open_ledger: OpenLedger
    ) -> None:
        made = submit(ledger, line_job())
        mine = open_ledger()
        lease = take_one(mine)
        mine.close()
        assert take(ledger) == []
        assert ledger.workers() == ["w1"]
        assert finish(ledger, made, lease) == [True]


def _walk(
    read: Callable[..., list[Any]], key: str, size: int, number: Callable[[Any], int]
) -> list[Any]:
    """What a read gives page by page."""
    found: list[Any] = []
    while page := read(key, after=number(found[-1]) if found else 0, limit=size):
        assert len(page) <= size
        found += page
    return found
