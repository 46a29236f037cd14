"""What a connection to a ledger refuses, whatever statement asks for it."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.model import TRANSITIONS, TaskState
from intermission.testing.jobs import line_job, submit


@pytest.mark.parametrize("state", sorted(set(TaskState) - TRANSITIONS[TaskState.PENDING]))
def test_a_transition_that_is_not_in_the_table_is_refused(tmp_path: Path, state: str) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.sqlite")
    made = submit(ledger, line_job())
    change = "UPDATE tasks SET state = ? WHERE state = 'pending'"
    if state == TaskState.PENDING:
        ledger.database.connection.execute(change, (state,))  # no change at all
    else:
        with pytest.raises(apsw.ConstraintError, match="illegal task transition"):
            ledger.database.connection.execute(change, (state,))
    assert [row.state for row in ledger.tasks(made.key)].count(TaskState.PENDING) == 1
    ledger.close()


def test_so_is_one_of_a_job(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.sqlite")
    submit(ledger, line_job())
    ledger.database.connection.execute("UPDATE jobs SET state = 'done'")
    with pytest.raises(apsw.ConstraintError, match="illegal job transition"):
        ledger.database.connection.execute("UPDATE jobs SET state = 'draining'")
    ledger.close()
