"""Failed tasks once more, by hand."""

from __future__ import annotations

from collections.abc import Sequence

from intermission.errors import UsageError
from intermission.maintenance.redo import redo
from intermission.model import TaskRow, TaskState
from intermission.operations.job_lookup import Found


def put_back(found: Found, rows: Sequence[TaskRow], *, fresh: bool) -> int:
    """Let failed or cancelled tasks go again, all of them unless some are named. How many changed.

    With `fresh`, the named tasks go again even if they are done, without their receipts.
    """
    done = [row for row in rows if row.state is TaskState.DONE]
    if done and not fresh:
        raise UsageError(
            f"{done[0].name} is done.", remedy="With --fresh it runs again all the same."
        )
    changed = 0
    if done:
        store, job = found.workspace.open_store(), found.row.job
        changed += redo(found.ledger, store, job, done, "retried by hand")
    ids = [row.id for row in rows if row.state is not TaskState.DONE]
    if ids or not rows:
        changed += found.ledger.retry(found.row.job.key, ids or None)
    return changed
