"""Recording outcomes: plans add tasks, failures wait, and lost bytes send the right tasks back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from engine_bench import Bench

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.engine import completion
from intermission.engine.receipt import adopt
from intermission.maintenance.redo import redo
from intermission.model import Completion, FileRef, JobState, Lease, Output, TaskState
from intermission.ports.slot_protocol import Failed
from intermission.telemetry import listen
from intermission.testing.faults import Crashed

SAME_CHUNK = {"hear[0]", "mark[0]"}
BEHIND = {"join", "stamp"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.submit()
    return made


def complete(bench: Bench, leases: Sequence[Lease]) -> list[bool]:
    done = [(lease, bench.run(lease)) for lease in leases]
    return completion.complete(bench.ledger, bench.store, bench.job, done, bench.scratch)


def test_a_plan_adds_the_tasks_it_calls_for(bench: Bench) -> None:
    bench.finish(bench.take_until("parts"))
    steps = [row.step for row in bench.ledger.tasks(bench.job.key)]
    assert steps.count("hear") == steps.count("mark") == steps.count("level") == 3
    assert steps.count("join") == 1


def test_two_plans_of_one_batch_are_both_recorded(bench: Bench) -> None:
    """What the second adds hangs on the first, which is done only once it is recorded."""
    bench.finish(bench.take()[0])
    leases = bench.take(2)
    assert {lease.step for lease in leases} == {"parts", "pages"}
    assert complete(bench, leases) == [True, True]
    assert bench.states()["join"] is TaskState.BLOCKED
    assert bench.states()["look[1]"] is TaskState.PENDING


def test_answers_keep_the_order_of_the_batch(bench: Bench) -> None:
    leases = bench.take(2)
    assert [lease.step for lease in leases] == ["audio", "pages"]
    stale = [(lease, bench.run(lease)) for lease in leases]
    bench.ledger.release([(leases[0].task_id, leases[0].fence)], reason="given back")
    bench.take()
    for batch, answers in ((stale, [False, True]), (stale[::-1], [True, False])):
        found = completion.complete(bench.ledger, bench.store, bench.job, batch, bench.scratch)
        assert found == answers


def test_an_empty_batch_asks_nobody(bench: Bench) -> None:
    passed: list[str] = []
    with listen(passed.append):
        assert complete(bench, []) == []
    assert passed == []


def test_tasks_are_computed_again_when_another_plan_was_faster(bench: Bench) -> None:
    bench.finish(bench.take()[0])
    slow, fast = bench.take(2)
    done = [(slow, bench.run(slow))]
    calls: list[str] = []

    def passing(point: str) -> None:
        if point == "before-expand" and not calls:
            calls.append(point)
            assert complete(bench, [fast]) == [True]

    with listen(passing):
        assert completion.complete(bench.ledger, bench.store, bench.job, done, bench.scratch) == [
            True
        ]
    assert calls
    assert {"join", "stamp", "look[1]", "hear[2]"} <= bench.states().keys()


def test_a_repeated_completion_is_accepted_and_changes_nothing(bench: Bench) -> None:
    (lease,) = bench.take()
    done = [(lease, bench.run(lease))]
    for _ in range(2):
        assert completion.complete(bench.ledger, bench.store, bench.job, done, bench.scratch) == [
            True
        ]
    assert [event.now for event in bench.ledger.events() if event.task_id == lease.task_id] == [
        "leased",
        "done",
    ]


@pytest.mark.parametrize(
    ("attempt", "own", "given", "expected"),
    [
        (1, None, (1.0, 5.0, 15.0), 1.0),
        (2, None, (1.0, 5.0, 15.0), 5.0),
        (9, None, (1.0, 5.0, 15.0), 15.0),
        (1, (7.0,), (1.0,), 7.0),
        (1, None, (), 0.0),
    ],
)
def test_when_to_try_again(
    bench: Bench,
    attempt: int,
    own: tuple[float, ...] | None,
    given: tuple[float, ...],
    expected: float,
) -> None:
    steps = tuple(replace(spec, retry_delays_s=own) for spec in bench.job.steps)
    (lease,) = bench.take()
    lease = replace(lease, attempt=attempt)
    failed = Failed(lease.task_id, "Broken", "it broke", True)
    made = completion.failure(replace(bench.job, steps=steps), lease, failed, given)
    assert made.delay_s == expected
    assert (made.task_id, made.fence, made.key) == (lease.task_id, lease.fence, lease.key)
    assert (made.error, made.message, made.permanent) == ("Broken", "it broke", True)


@pytest.mark.parametrize("asked_s", [0.0, 7.5])
def test_whoever_asked_for_a_wait_gets_it(bench: Bench, asked_s: float) -> None:
    (lease,) = bench.take()
    failed = Failed(lease.task_id, "TaskError", "busy", False, asked_s)
    assert completion.failure(bench.job, lease, failed, (60.0,)).delay_s == asked_s


def test_delays_are_spread(bench: Bench) -> None:
    (lease,) = bench.take()
    failed = Failed(lease.task_id, "Broken", "it broke", False)
    delays = {
        completion.failure(bench.job, lease, failed, (10.0,), jitter=0.2).delay_s for _ in range(50)
    }
    assert len(delays) > 10
    assert all(8 <= delay <= 12 for delay in delays)


def invalidate(bench: Bench, name: str, key: str) -> int:
    lost = {bench.row(name).key: [key]}
    return completion.invalidate(bench.ledger, bench.store, bench.job, lost, "it is lost")


def test_lost_bytes_are_made_again_and_what_hangs_on_them_stands(bench: Bench) -> None:
    bench.finish_all()
    own, behind = bench.receipt_key("hear[0]"), [bench.receipt_key(n) for n in ("mark[0]", "join")]
    stood = [bench.store.read(key) for key in behind]
    file = bench.spoil_file("hear[0]")
    assert invalidate(bench, "hear[0]", file) == 4
    assert set(bench.quarantined()) == {file, own}
    assert bench.states()["hear[0]"] is TaskState.CORRUPT
    assert bench.finish_all() == ["hear[0]"]
    assert [bench.store.read(key) for key in behind] == stood
    assert bench.ledger.jobs()[0].state is JobState.DONE


def test_what_was_made_from_other_bytes_runs_again(bench: Bench) -> None:
    bench.finish_all()
    key = bench.receipt_key("mark[0]")
    made = bench.receipt("mark[0]")
    assert made.inputs
    other = replace(made, inputs=dict.fromkeys(made.inputs, "other bytes"))
    bench.store.replace(key, other.to_json().encode())
    invalidate(bench, "hear[0]", bench.spoil_file("hear[0]"))
    assert bench.finish_all() == ["hear[0]", "mark[0]"]
    assert bench.receipt("mark[0]").inputs == made.inputs
    assert bench.ledger.jobs()[0].state is JobState.DONE


def test_a_loss_that_was_made_good_meanwhile_changes_nothing(bench: Bench) -> None:
    bench.finish_all()
    file = bench.spoil_file("hear[0]")
    invalidate(bench, "hear[0]", file)
    bench.finish_all()
    before = bench.keys("receipts/")
    assert invalidate(bench, "hear[0]", file) == 0
    assert bench.keys("receipts/") == before
    assert bench.ledger.jobs()[0].state is JobState.DONE


def test_a_ledger_that_is_behind_adopts_what_was_done_again(bench: Bench, tmp_path: Path) -> None:
    """It still has the lost file on record, but the store has a new receipt: that one stands."""
    bench.finish_all()
    file = bench.spoil_file("hear[0]")
    old = {name: bench.receipt(name) for name in ("hear[0]", "join")}
    other = Bench(tmp_path)
    other.store, other.work = bench.store, bench.work
    other.submit()
    other.finish_all()
    assert other.receipt("hear[0]") != old["hear[0]"]
    assert other.receipt("join") == old["join"], "a new ledger adopts what is sound"
    before = bench.keys("receipts/")
    assert invalidate(bench, "hear[0]", file) == 4
    assert bench.keys("receipts/") == before
    assert bench.finish_all() == []
    assert bench.receipt("hear[0]") == other.receipt("hear[0]")


def test_one_who_notices_late_takes_nothing_that_is_new(bench: Bench) -> None:
    """Asleep between looking and acting, while another worker did all of it again."""
    bench.finish_all()
    file = bench.spoil_file("hear[0]")
    slept: list[str] = []

    def passing(point: str) -> None:
        if point == "mid-quarantine" and not slept:
            slept.append(point)
            invalidate(bench, "hear[0]", file)
            bench.finish_all()

    with listen(passing):
        invalidate(bench, "hear[0]", file)
    assert slept
    assert bench.finish_all() == [], "what was done again is adopted"
    for row in bench.ledger.tasks(bench.job.key):
        if row.state is TaskState.DONE and bench.job.step(row.step).durable:
            key = bench.receipt(row.name).task_key
            assert adopt(bench.store, row.step, key, bench.scratch), f"{row.name} has no receipt"


def test_a_crash_before_the_ledger_knows_is_noticed_again(bench: Bench) -> None:
    class Down(SqliteLedger):
        def invalidate(self, *_: object, **__: object) -> list[object]:  # type: ignore[override]
            raise Crashed

    bench.finish_all()
    file = bench.spoil_file("hear[0]")
    bench.ledger.__class__ = Down
    with pytest.raises(Crashed):
        invalidate(bench, "hear[0]", file)
    bench.ledger.__class__ = SqliteLedger
    assert invalidate(bench, "hear[0]", file) == 4
    assert bench.finish_all() == ["hear[0]"]


def test_redo_runs_done_tasks_and_what_hangs_on_them_again(bench: Bench) -> None:
    bench.finish_all()
    rows = [bench.row("mark[0]"), bench.row("look[1]")]
    assert redo(bench.ledger, bench.store, bench.job, rows, "by hand") == 4
    assert set(bench.finish_all()) == {"mark[0]", "look[1]", *BEHIND}
    assert bench.ledger.jobs()[0].state is JobState.DONE


def test_a_result_too_large_for_a_receipt_is_read_from_its_file(bench: Bench) -> None:
    small = completion.planned_chunks(bench.store, Output("k", '[{"n":1}]'), bench.scratch)
    assert list(small) == ['{"n":1}']
    for text, expected in (
        ('[{"n":1},\n{"n":2},\n{"n":3}]', ['{"n":1}', '{"n":2}', '{"n":3}']),
        ('[{"n":1}, {"n":2}]', ['{"n":1}', '{"n":2}']),
        ('[{"n":1}]', ['{"n":1}']),
        ("[]", []),
    ):
        data = text.encode()
        bench.store.replace("plan.json", data)
        ref = FileRef("result.json", "plan.json", len(data), sha256(data).hexdigest())
        large = completion.planned_chunks(bench.store, Output("k", "", (ref,)), bench.scratch)
        assert list(large) == list(large) == expected


def test_completions_are_for_the_task_and_not_for_its_id(bench: Bench) -> None:
    (lease,) = bench.take()
    finished = bench.run(lease)
    assert finished.key == lease.key
    stranger = [(lease, Completion(lease.task_id, lease.fence, "1", key="another"))]
    assert completion.complete(bench.ledger, bench.store, bench.job, stranger, bench.scratch) == [
        False
    ]
