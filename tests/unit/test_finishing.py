"""Finishing a deferred task: one outcome counts, whatever is killed, repeated or late."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from intermission import Context, Pipeline, Source, step
from intermission.composition.app import App
from intermission.engine.receipt import peek
from intermission.errors import UsageError
from intermission.model import RESULT_INLINE_MAX_BYTES, Completion, Job, Lease, Receipt, TaskState
from intermission.operations.finish import NotWaiting, Outcome, finish
from intermission.pipeline.file import File
from intermission.ports.ledger import Ledger
from intermission.settings import Settings
from intermission.testing.faults import Crashed, crashing

TOKEN = "call/7"
POINTS = (
    "after-artifacts",
    "before-receipt",
    "after-receipt",
    "before-publish",
    "after-publish",
    "before-complete",
    "after-complete",
)


@step(version=1)
def first(source: Source) -> int:
    return 1


@step(version=1, attempts=2, publish="{name}")
def outside(ctx: Context, first: int) -> File:
    raise AssertionError("nobody runs it here")


@step(version=1, durable=False)
def rest(outside: File) -> int:
    return 0


pipeline = Pipeline("deferring", [first, outside, rest])


@dataclass
class Waiting:
    """A task that waits for TOKEN, and what may come for it."""

    app: App
    job: Job
    ledger: Ledger
    lease: Lease
    folder: Path

    def finish(self, text: str = "nine", *, result: str = '"out.txt"', **how: Any) -> TaskState:
        path = self.folder / f"{text}.bin"
        path.write_text(text)
        files = {} if "failed" in how else {"out.txt": path}
        outcome = Outcome(failed=how["failed"]) if "failed" in how else Outcome(result)
        return finish(self.app, TOKEN, outcome, files, str(self.folder)).state

    def receipt(self) -> Receipt | None:
        store = self.app.workspace_of_job(self.job).open_store()
        return peek(store, "outside", self.lease.key)

    def state(self) -> TaskState:
        (row,) = self.ledger.tasks(self.job.key, step="outside")
        return row.state


@pytest.fixture(params=["in place", "shared ledger"])
def waiting(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Waiting]:
    """Beside a neighbour whose workspace comes first."""
    values: dict[str, Any] = {"pipelines": (f"{__file__}:pipeline",), "cache_dir": tmp_path}
    if request.param == "shared ledger":
        values["ledger"] = str(tmp_path / "shared.sqlite")
    app = App(Settings(**values))
    for name in ("a.txt", "b.txt"):
        path = tmp_path / name
        path.write_text(name)
        submission = app.submit(pipeline, path, {})
        ledger, job = submission.ledger, submission.job
        if name == "a.txt":
            ledger.cancel(job.key, reason="not this one")
            submission.held.close()
    (lease,) = ledger.claim("w", 1, lease_ttl_s=60, jobs=[job.key])
    ledger.complete([Completion(lease.task_id, lease.fence, "1", key=lease.key)])
    (lease,) = ledger.claim("w", 1, lease_ttl_s=60, jobs=[job.key])
    assert ledger.defer(lease.task_id, lease.fence, token=TOKEN, timeout_s=600)
    yield Waiting(app, job, ledger, lease, tmp_path)
    submission.held.close()


def test_a_result_with_a_file_is_stored_published_and_recorded(waiting: Waiting) -> None:
    assert waiting.finish() is TaskState.DONE
    receipt = waiting.receipt()
    assert receipt is not None
    assert [(one.name, one.size_bytes, one.sha256) for one in receipt.files] == [
        ("out.txt", 4, hashlib.sha256(b"nine").hexdigest())
    ]
    assert (waiting.folder / "deferring/b/out.txt").read_text() == "nine"
    assert waiting.state() is TaskState.DONE
    (after,) = waiting.ledger.claim("w", 1, lease_ttl_s=60, jobs=[waiting.job.key])
    assert after.step == "rest"


def test_the_receipt_says_what_the_result_was_made_from(waiting: Waiting) -> None:
    waiting.finish()
    receipt = waiting.receipt()
    assert receipt is not None
    assert set(receipt.inputs) == {"first"}


def test_one_finish_counts(waiting: Waiting) -> None:
    waiting.finish("nine")
    assert waiting.finish("nine") is TaskState.DONE
    with pytest.raises(UsageError, match="with the result that came first"):
        waiting.finish("ten")
    with pytest.raises(NotWaiting, match="it is done, with the result that came first"):
        waiting.finish(failed="no")
    assert (waiting.folder / "deferring/b/out.txt").read_text() == "nine"


@pytest.mark.parametrize("point", POINTS)
def test_after_a_kill_the_same_call_goes_on(waiting: Waiting, point: str) -> None:
    with pytest.raises(Crashed), crashing(point):
        waiting.finish()
    assert waiting.finish() is TaskState.DONE
    assert waiting.state() is TaskState.DONE
    assert (waiting.folder / "deferring/b/out.txt").read_text() == "nine"


def test_a_file_that_a_killed_call_left_is_in_nobodys_way(waiting: Waiting) -> None:
    with pytest.raises(Crashed), crashing("after-artifacts"):
        waiting.finish("ten")
    assert waiting.finish("nine") is TaskState.DONE
    assert (waiting.folder / "deferring/b/out.txt").read_text() == "nine"


def test_a_receipt_that_another_left_wins(waiting: Waiting) -> None:
    with pytest.raises(Crashed), crashing("after-receipt"):
        waiting.finish()
    other = waiting.folder / "other.bin"
    other.write_text("ten")
    with pytest.raises(NotWaiting, match="it is done, with the result that came first"):
        finish(waiting.app, TOKEN, Outcome('"b.txt"'), {"b.txt": other}, str(waiting.folder))
    assert waiting.state() is TaskState.DONE
    receipt = waiting.receipt()
    assert receipt is not None
    assert [one.name for one in receipt.files] == ["out.txt"]


def test_a_failed_attempt_is_tried_again_and_then_given_up(waiting: Waiting) -> None:
    assert waiting.finish(failed="the model crashed") is TaskState.RETRYING
    assert waiting.finish(failed="the model crashed") is TaskState.RETRYING
    (row,) = waiting.ledger.tasks(waiting.job.key, step="outside")
    assert (row.message, row.attempts) == ("the model crashed", 1)
    with pytest.raises(NotWaiting, match="that attempt ended, and the task is retrying now"):
        waiting.finish()
    assert waiting.receipt() is None


def test_whoever_comes_after_the_time_out_is_told(waiting: Waiting) -> None:
    ids = waiting.lease.task_id, waiting.lease.fence
    waiting.ledger.defer(*ids, token=TOKEN, timeout_s=-1)
    assert waiting.ledger.rescue() == 1
    with pytest.raises(NotWaiting, match="the deferral timed out") as told:
        waiting.finish()
    assert told.value.is_known
    assert waiting.receipt() is None


def test_a_cancelled_task_takes_no_result(waiting: Waiting) -> None:
    waiting.ledger.cancel(waiting.job.key, reason="no")
    with pytest.raises(NotWaiting, match="it was cancelled"):
        waiting.finish()


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ('"another.txt"', "not what the step returns"),
        ("nine", "not what the step returns"),
        ('"' + "x" * RESULT_INLINE_MAX_BYTES + '"', "more than 65536 bytes"),
    ],
)
def test_a_result_of_another_kind_is_refused(waiting: Waiting, result: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        waiting.finish(result=result)
    assert waiting.state() is TaskState.RUNNING
    assert waiting.finish() is TaskState.DONE


def test_a_token_that_nobody_knows(waiting: Waiting) -> None:
    with pytest.raises(NotWaiting, match=r"no task of .* waits for 'call/8'") as told:
        finish(waiting.app, "call/8", Outcome("9"), {}, str(waiting.folder))
    assert not told.value.is_known
