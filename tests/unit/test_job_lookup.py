"""Which task a name means, and what it costs to find out."""

from __future__ import annotations

from typing import Any, cast

import pytest

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.errors import UsageError
from intermission.model import TaskRow
from intermission.operations.job_lookup import Found, find_task
from intermission.ports.ledger import PAGE
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import fan_job
from intermission.testing.ledger.suite import planned
from intermission.testing.scratch_ledger import scratch_ledger


class Ledger(SqliteLedger):
    """Counts the pages that are read."""

    pages = 0

    def tasks(self, *args: Any, **options: Any) -> list[TaskRow]:
        self.pages += 1
        return super().tasks(*args, **options)


@pytest.fixture
def ledger() -> Ledger:
    return scratch_ledger(FakeClock(), Ledger)


@pytest.fixture
def found(ledger: Ledger) -> Found:
    planned(ledger, fan_job(), 3 * PAGE)
    (row,) = ledger.jobs()
    ledger.pages = 0
    return Found(cast(Any, None), cast(Any, None), ledger, row)


def test_a_step_of_one_task_names_it(found: Found) -> None:
    assert find_task(found, "join").step == "join"


def test_a_step_of_many_tasks_is_refused_without_reading_them_all(
    found: Found, ledger: Ledger
) -> None:
    with pytest.raises(UsageError, match="more than one task is named 'hear'"):
        find_task(found, "hear")
    assert ledger.pages == 1


def test_so_is_the_beginning_of_many_keys(found: Found, ledger: Ledger) -> None:
    with pytest.raises(UsageError, match="more than one task is named ''"):
        find_task(found, "")
    assert ledger.pages == 1


def test_a_task_of_a_mapped_step_is_found_by_its_index(found: Found) -> None:
    assert find_task(found, "hear[1]").index == 1


def test_the_beginning_of_a_key_names_its_task(found: Found) -> None:
    key = find_task(found, "hear[7]").key
    assert find_task(found, key[:20]).index == 7


def test_a_name_that_no_task_has_is_said(found: Found) -> None:
    with pytest.raises(UsageError, match="no task is named 'zz'"):
        find_task(found, "zz")
