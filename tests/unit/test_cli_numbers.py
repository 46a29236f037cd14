"""The numbers the command line shows: rates from new work alone, words for sizes and times."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from pathlib import Path

import pytest

from intermission.cli import plain_reporter as plain_module
from intermission.cli import progress_stats as meter_module
from intermission.cli.formatting import count, duration, rate, size, table
from intermission.cli.plain_reporter import PlainReporter
from intermission.cli.progress_stats import Meter
from intermission.errors import EnvironmentFault, SourceError
from intermission.model import Job, JobRow, JobState, Source, StepKind, StepSpec, TaskState
from intermission.operations import RunReport, SourceRun

STEPS = (StepSpec("cut", 1, StepKind.PLAN), StepSpec("hear", 1, StepKind.MAP, plan="cut"))
JOB = Job("key", "talk", "talk", Source("file:///talk.mp4", "abc"), "{}", STEPS)


class HandClock:
    """Seconds that pass when they are told to."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    hand = HandClock()
    monkeypatch.setattr(meter_module, "time", hand)
    return hand


def opened(counts: Mapping[TaskState, int], state: JobState = JobState.RUNNING) -> SourceRun:
    row = JobRow(1, JOB, state, 0, 0, None, {"cut": {TaskState.DONE: 1}, "hear": dict(counts)})
    reused = counts.get(TaskState.DONE, 0) + 1
    return SourceRun(Path("/talk.mp4"), JOB, row, reused=reused)


def now(run: SourceRun, counts: Mapping[TaskState, int]) -> None:
    assert run.row is not None
    run.row = opened(counts, run.row.state).row


def test_the_rate_knows_nothing_of_reused_work(clock: HandClock) -> None:
    meter = Meter()
    run = opened({TaskState.DONE: 90, TaskState.PENDING: 10})
    meter.opened(run)
    _, hear = meter.steps()
    assert (hear.total, hear.done, hear.reused) == (100, 90, 90)
    assert hear.rate_per_s is None
    assert hear.left_s is None
    now(run, {TaskState.DONE: 90, TaskState.LEASED: 2, TaskState.PENDING: 8})
    meter.steps()
    clock.now_s += 8
    run.stats.executed["hear"] = 4
    now(run, {TaskState.DONE: 94, TaskState.LEASED: 2, TaskState.PENDING: 4})
    _, hear = meter.steps()
    assert hear.reused == 90
    assert hear.rate_per_s == pytest.approx(0.5)
    assert hear.left_s == pytest.approx(12)


def test_adopted_receipts_are_reused_work(clock: HandClock) -> None:
    meter = Meter()
    run = opened({TaskState.PENDING: 10})
    meter.opened(run)
    clock.now_s += 1
    run.stats.adopted["hear"] = 10
    now(run, {TaskState.DONE: 10})
    _, hear = meter.steps()
    assert hear.reused == 10
    assert hear.rate_per_s is None
    assert hear.ended


def test_a_step_that_waits_for_others_has_no_time_of_its_own(clock: HandClock) -> None:
    meter = Meter()
    run = opened({TaskState.DONE: 0, TaskState.LEASED: 1, TaskState.BLOCKED: 5})
    meter.opened(run)
    meter.steps()
    clock.now_s += 1
    run.stats.executed["hear"] = 1
    now(run, {TaskState.DONE: 1, TaskState.BLOCKED: 5})
    _, hear = meter.steps()
    assert hear.rate_per_s == pytest.approx(1)
    assert hear.left_s is None


def test_closed_sources_stay_in_the_sums(clock: HandClock) -> None:
    meter = Meter()
    first = opened({TaskState.PENDING: 3})
    meter.opened(first)
    first.stats.executed["hear"] = 2
    first.row = opened({TaskState.DONE: 2, TaskState.FAILED: 1}, JobState.FAILED).row
    meter.closed(first)
    second = opened({TaskState.DONE: 4})
    meter.opened(second)
    _, hear = meter.steps()
    assert (hear.total, hear.done, hear.reused, hear.failed) == (7, 6, 4, 1)
    assert hear.losses == ["1 failed"]
    assert meter.open == [second]
    assert meter.done == 0


def test_plain_lines_count_every_file_that_was_found(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_module, "time", clock)
    said = StringIO()
    reporter = PlainReporter(said)
    reporter.found(3)
    first, second = opened({TaskState.PENDING: 3}), opened({TaskState.PENDING: 5})
    reporter.opened(first)
    clock.now_s += 3
    reporter.tick()
    assert said.getvalue().splitlines()[-1] == "0 of 3 files done, hear 0/3"
    first.row = opened({TaskState.DONE: 3}, JobState.DONE).row
    reporter.closed(first)
    reporter.opened(second)
    clock.now_s += 3
    reporter.tick()
    assert said.getvalue().splitlines()[-1] == "1 of 3 files done, hear 3/8"


def test_exit_codes() -> None:
    done = opened({TaskState.DONE: 1}, JobState.DONE)
    failed = opened({TaskState.FAILED: 1}, JobState.FAILED)
    full = SourceRun(Path("/talk.mp4"), error=EnvironmentFault("full"))
    missing = SourceRun(Path("/talk.mp4"), error=SourceError("missing"))
    assert RunReport([done, done]).exit_code == 0
    assert RunReport([done, failed]).exit_code == 3
    assert RunReport([done, full]).exit_code == 3
    assert RunReport([failed, missing]).exit_code == 1
    assert RunReport([failed, full]).exit_code == 4
    assert RunReport([done, failed], "SIGTERM").exit_code == 75
    assert RunReport([done, done], "SIGTERM").exit_code == 0, "nothing is left to do"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1:00 min"), (3725, "1:02:05 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_other_words() -> None:
    assert [rate(17.94), rate(0.5), rate(0.001)] == ["17.9/s", "30.0/min", "3.6/h"]
    assert [size(11), size(2048), size(3 * 2**40)] == ["11 B", "2.0 KiB", "3.0 TiB"]
    assert [count(1, "task"), count(1000, "task")] == ["1 task", "1,000 tasks"]


def test_tables_align_numbers_to_the_right() -> None:
    rows = [("cut", 1, "fine"), ("hear", 1000, "")]
    assert table(("STEP", "TASKS", "NOTE"), rows) == (
        "STEP  TASKS  NOTE\ncut       1  fine\nhear   1000"
    )
