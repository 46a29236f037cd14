"""Which job or task a name means, and what it costs to find out, however large the ledger is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from counted_ledger import CountedLedger

from intermission.composition import locations
from intermission.composition.app import App
from intermission.errors import UsageError
from intermission.operations.job_handle import open_job
from intermission.operations.job_lookup import Found, find_job, find_task
from intermission.ports.ledger import PAGE
from intermission.settings import Settings
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import fan_job, line_job, submit
from intermission.testing.ledger.suite import planned
from intermission.testing.scratch_ledger import scratch_ledger

FEW = 64
"""Rows: what a search along an index may read, whatever the size of the table."""
JOBS = 100


@pytest.fixture
def ledger() -> CountedLedger:
    return scratch_ledger(FakeClock(), CountedLedger)


@pytest.fixture
def found(ledger: CountedLedger) -> Found:
    planned(ledger, fan_job(), 3 * PAGE)
    (row,) = ledger.jobs()
    ledger.forget()
    return Found(cast(Any, None), cast(Any, None), ledger, row, cast(Any, None))


def test_a_step_of_one_task_names_it(found: Found) -> None:
    assert find_task(found, "join").step == "join"


def test_a_step_of_many_tasks_is_refused_without_reading_them_all(
    found: Found, ledger: CountedLedger
) -> None:
    with pytest.raises(UsageError, match="more than one task is named 'hear'"):
        find_task(found, "hear")
    assert ledger.rows["tasks"] <= 2


def test_so_is_the_beginning_of_many_keys(found: Found, ledger: CountedLedger) -> None:
    with pytest.raises(UsageError, match="more than one task is named ''"):
        find_task(found, "")
    assert ledger.rows["tasks"] <= PAGE


def test_a_task_of_a_mapped_step_is_found_by_its_index(found: Found) -> None:
    assert find_task(found, "hear[1]").index == 1


@pytest.mark.parametrize("index", [0, 1, 1234, 3 * PAGE - 1])
def test_its_index_is_searched_for_and_not_walked_to(
    found: Found, ledger: CountedLedger, index: int
) -> None:
    assert find_task(found, f"hear[{index}]").index == index
    assert sum(ledger.rows.values()) <= FEW


def test_an_index_that_no_task_has_is_known_at_once(found: Found, ledger: CountedLedger) -> None:
    with pytest.raises(UsageError, match=r"no task is named 'hear\[3000\]'"):
        find_task(found, f"hear[{3 * PAGE}]")
    assert sum(ledger.rows.values()) <= FEW


def test_tasks_that_are_not_in_the_order_of_their_indexes_are_found_all_the_same(
    found: Found, ledger: CountedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No ledger promises that order."""
    real = ledger.tasks

    def late(*args: Any, limit: int = PAGE, **options: Any) -> Any:
        return real(*args, limit=limit, **options) if limit == PAGE else []

    monkeypatch.setattr(ledger, "tasks", late)
    assert find_task(found, "hear[1234]").index == 1234


def test_the_beginning_of_a_key_names_its_task(found: Found) -> None:
    key = find_task(found, "hear[7]").key
    assert find_task(found, key[:20]).index == 7


def test_a_name_that_no_task_has_is_said(found: Found) -> None:
    with pytest.raises(UsageError, match="no task is named 'zz'"):
        find_task(found, "zz")


def key_of(n: int) -> str:
    """Many of these begin alike."""
    return f"{n % 10}{n:039x}"


@pytest.fixture
def shared(ledger: CountedLedger, monkeypatch: pytest.MonkeyPatch) -> App:
    """An app whose jobs are all in one ledger."""
    for n in range(JOBS):
        submit(ledger, line_job(key=key_of(n)))
    ledger.forget()
    app = App(Settings())
    monkeypatch.setattr(ledger, "close", lambda: None)
    app.shared = lambda: ledger
    return app


def test_a_shared_ledger_finds_a_job_by_its_key_alone(shared: App, ledger: CountedLedger) -> None:
    with find_job(shared, key_of(42)[:40], ".") as found:
        assert found.row.job.key == key_of(42)
    assert ledger.rows["jobs"] <= 2


def test_and_a_beginning_that_many_keys_have_is_refused_after_two(
    shared: App, ledger: CountedLedger
) -> None:
    with (
        pytest.raises(UsageError, match="more than one job has a key that begins with '7'"),
        find_job(shared, "7", "."),
    ):
        pass
    assert ledger.rows["jobs"] <= 2


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a source that many jobs were run over."""
    monkeypatch.setattr(locations, "SqliteLedger", CountedLedger)
    source = tmp_path / "talk.mp4"
    source.write_bytes(b"talk")
    ledger = App(Settings()).workspace(source).open_ledger()
    for n in range(JOBS):
        submit(ledger, line_job(key=key_of(n)))
    ledger.close()
    monkeypatch.setattr(CountedLedger, "largest", 0)
    return tmp_path


def test_the_newest_job_of_a_source_is_read_without_the_others(place: Path) -> None:
    with find_job(App(Settings()), str(place / "talk.mp4"), ".") as found:
        assert found.row.job.key == key_of(JOBS - 1)
    assert CountedLedger.largest <= 2


@pytest.mark.parametrize("write", [False, True])
def test_a_job_below_a_folder_is_found_by_its_key_alone(place: Path, write: bool) -> None:
    with open_job(App(Settings()), key_of(42)[:40], str(place), write=write) as found:
        assert found.document().job == key_of(42)
    assert CountedLedger.largest <= 2


def test_and_a_beginning_that_many_of_them_have_is_refused(place: Path) -> None:
    with (
        pytest.raises(UsageError, match="more than one job has a key that begins with '7'"),
        find_job(App(Settings()), "7", str(place)),
    ):
        pass
    assert CountedLedger.largest <= 2
