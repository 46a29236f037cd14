"""Changing what a ledger says by hand: failed tasks once more, deferred ones finished."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from intermission.composition.app import App
from intermission.composition.locations import as_location
from intermission.engine import completion
from intermission.engine.run_task import Work, finish_deferred
from intermission.engine.store_io import StoreIO
from intermission.engine.workspace import Workspace
from intermission.errors import UsageError
from intermission.maintenance.redo import redo
from intermission.model import Lease, TaskRow, TaskState
from intermission.operations.job_lookup import Found
from intermission.ports.ledger import Ledger


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


def finish(app: App, token: str, result: str, place: str) -> str:
    """Finish the task that was deferred under a token, with its result as JSON. Its name."""
    for _, workspace in app.workspaces(as_location(place)):
        with app.reading(workspace) as ledger:
            if ledger is None or ledger.deferred(token) is None:
                continue
        with app.writing(workspace) as ledger:
            lease = ledger.deferred(token)
            if lease is not None:
                return _finish(app, workspace, ledger, lease, result)
    raise UsageError(
        f"no task at or below {as_location(place)} waits for {token!r}.",
        remedy="It is finished, timed out, or somewhere else: --in says where to look.",
    )


def _finish(app: App, workspace: Workspace, ledger: Ledger, lease: Lease, result: str) -> str:
    (row,) = ledger.jobs(lease.job_key)
    name = lease.step if lease.chunk is None else f"{lease.step}[{lease.index}]"
    io = StoreIO(row.job, workspace.open_store(), None, workspace.folder / "scratch")
    work = Work(row.job, app.catalog.of(row.job).pipeline, io, worker="finish")
    try:
        finished = finish_deferred(work, lease, result)
    except (ValidationError, KeyError) as e:
        why = e.errors()[0]["msg"] if isinstance(e, ValidationError) else f"no file {e}"
        raise UsageError(
            f"{result!r} is no result of {name}: {why}.",
            remedy="Give what the step's signature says it returns, as JSON.",
        ) from e
    done = [(lease, finished)]
    (accepted,) = completion.complete(ledger, io.store, row.job, done, io.scratch)
    if not accepted:
        raise UsageError(
            f"{name} no longer waits for this result.", remedy="`intermission inspect` says why."
        )
    return name
