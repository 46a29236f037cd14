"""What it costs to look at one task of a large job: a few pages, however large the job is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from counted_ledger import CountedLedger

from intermission.backends.store.memory import MemoryStore
from intermission.cli import inspect as cli_inspect
from intermission.composition.app import App
from intermission.engine.receipt import receipt_key
from intermission.model import Job, Receipt, TaskRow
from intermission.operations import inspect
from intermission.operations.documents import TaskDocument
from intermission.operations.job_handle import LedgerJob
from intermission.operations.job_lookup import Found, find_task
from intermission.ports.ledger import PAGE, every_task
from intermission.settings import Settings
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import fan_job, job, mapped, plan
from intermission.testing.ledger.suite import finish, planned, take
from intermission.testing.scratch_ledger import scratch_ledger


class CountedStore(MemoryStore):
    """Counts what is read and listed."""

    reads = 0
    listed = 0

    def read(self, key: str) -> bytes:
        self.reads += 1
        return super().read(key)

    def list(self, prefix: str) -> Iterator[Any]:
        for stat in super().list(prefix):
            self.listed += 1
            yield stat


class Desk:
    """A ledger and a store of one source, and jobs of any size in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.ledger = scratch_ledger(self.clock, CountedLedger)
        self.store = CountedStore(self.clock)
        self.workspace = cast(
            Any,
            SimpleNamespace(
                open_store=lambda: self.store, scratch=folder, folder=folder, is_remote=False
            ),
        )

    def found(self, made: Job) -> Found:
        (row,) = self.ledger.jobs(made.key)
        self.ledger.forget()
        app = App(Settings(ledger=str(self.folder / "ledger.sqlite")), self.clock)
        return Found(Path("talk.mp4"), self.workspace, self.ledger, row, app)

    def work(self, made: Job, most: int) -> None:
        """Finish so many tasks, one after the other, with receipts."""
        for _ in range(most):
            (lease,) = take(self.ledger, 1, jobs=[made.key])
            self.clock.advance(0.1)
            finish(self.ledger, made, lease)
            self.leave(lease.key, lease.chunk, made)

    def leave(self, key: str, chunk: str | None, made: Job) -> None:
        """A receipt of a task, with what its key was made of."""
        parts = {"version": "1", "source content": made.source.fingerprint}
        receipt = Receipt(key, "hear", 1, "00001-a", 1, "1", chunk=chunk, parts=parts)
        receipt = replace(receipt, ended_ms=self.clock.now_ms())
        self.store.replace(receipt_key("hear", key), receipt.to_json().encode())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def names(found: Found, row: TaskRow) -> tuple[list[str], int]:
    events, after = inspect.history_of(found, row)
    return [f"{event.was} -> {event.now}" for event in events], after


RAN = ["pending -> leased", "leased -> done"]


def test_the_history_of_a_task_in_a_small_job_is_whole(desk: Desk) -> None:
    made = planned(desk.ledger, fan_job(), 20)
    desk.work(made, 20)
    found = desk.found(made)
    assert names(found, find_task(found, "hear[3]")) == (RAN, 0)


@pytest.mark.parametrize("index", [0, 120, 399])
@pytest.mark.parametrize("between", [0, 3])
def test_in_a_large_job_only_events_near_its_end_are_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, index: int, between: int
) -> None:
    """Also where most events between are those of other jobs."""
    monkeypatch.setattr(inspect, "HISTORY_MAX", 40)
    made = planned(desk.ledger, fan_job(), 400)
    others = planned(desk.ledger, fan_job(key="others"), 400 * between)
    for _ in range(400):
        desk.work(made, 1)
        desk.work(others, between)
    found = desk.found(made)
    row = find_task(found, f"hear[{index}]")
    desk.ledger.forget()
    history, after = names(found, row)
    assert history == RAN
    assert (after > 0) is (index > 0), "what was not read is told"
    assert desk.ledger.rows["events"] <= 40 * 12


def test_a_task_that_has_not_ended_is_told_from_the_newest_events(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "HISTORY_MAX", 40)
    made = planned(desk.ledger, fan_job(), 400)
    desk.work(made, 200)
    take(desk.ledger, 1, jobs=[made.key])
    found = desk.found(made)
    assert names(found, find_task(found, "hear[200]"))[0] == RAN[:1]


def test_details_say_from_where_on_the_history_is(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "HISTORY_MAX", 40)
    made = planned(desk.ledger, fan_job(), 100)
    desk.work(made, 100)
    details = LedgerJob(desk.found(made)).details("hear[60]")
    assert [event.now for event in details.history] == ["leased", "done"]
    assert details.history_after > 0


def other_version(made: Job, key: str) -> Job:
    """The same source and steps, with another version of `hear`."""
    steps = tuple(replace(one, version=2) if one.name == "hear" else one for one in made.steps)
    return replace(made, key=key, steps=steps)


def many(key: str = "job") -> Job:
    return job(plan("cut"), mapped("hear", "cut"), key=key)


def test_why_a_task_of_a_large_job_ran_is_found_by_the_same_chunk_of_an_earlier_job(
    desk: Desk,
) -> None:
    old, total = many(), 3 * PAGE
    planned(desk.ledger, old, total)
    for row in every_task(desk.ledger, old.key, step="hear"):
        changed = replace(old, source=replace(old.source, fingerprint="before"))
        desk.leave(row.key, row.chunk, changed)
    leases = take(desk.ledger, total, jobs=[old.key])
    for lease in leases:
        finish(desk.ledger, old, lease)
    new = other_version(old, "newer")
    planned(desk.ledger, new, total)
    found = desk.found(new)
    row = find_task(found, "hear[2345]")
    desk.store.reads = desk.store.listed = 0
    desk.ledger.forget()
    now = {"version": "2", "source content": "before"}
    assert inspect.what_changed(found, row, now) == "version was 1, is 2"
    assert desk.ledger.rows["tasks"] <= PAGE + 1
    assert desk.store.reads <= PAGE
    assert desk.store.listed <= PAGE


def documents(desk: Desk, total: int) -> tuple[Iterator[TaskDocument], list[str]]:
    """The tasks of a job with so many chunks, and the names of those that were asked for."""
    made = planned(desk.ledger, many(), total)
    asked: list[str] = []

    def each() -> Iterator[TaskDocument]:
        for task in LedgerJob(desk.found(made)).tasks():
            asked.append(task.task)
            yield task

    return each(), asked


def test_the_tasks_of_a_large_job_are_printed_page_by_page(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks, _ = documents(desk, 2 * PAGE)
    cli_inspect.print_tasks(tasks)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["TASK", "cut", "hear[0]"]
    assert len(lines) == 1 + 1 + 2 * PAGE
    assert CountedLedger.largest <= PAGE


def test_and_no_more_are_read_once_nobody_reads(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, asked = documents(desk, 3 * PAGE)
    monkeypatch.setattr(cli_inspect, "reader_left", lambda: True)
    cli_inspect.print_tasks(tasks)
    assert len(asked) == PAGE


def test_a_job_without_tasks_has_the_head_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    cli_inspect.print_tasks(iter(()))
    assert capsys.readouterr().out.split() == ["TASK", "STATE", "ATTEMPTS", "KEY", "MESSAGE"]
