"""What people ask about a task: why it ran, what it left behind, what happened to it.

Nothing here changes a ledger or a store.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from intermission.backends.executor.slot import log_name
from intermission.composition.event_log import events_after, timestamp
from intermission.engine.completion import planned_chunks
from intermission.engine.planning import Keys, parts, plan_steps
from intermission.engine.receipt import peek, receipt_key
from intermission.model import FINISHED, Event, Reason, Receipt, TaskRow, TaskState
from intermission.operations.explain import reason, receipts_of
from intermission.operations.job_lookup import Found
from intermission.ports.ledger import STUCK_HOSTS, every_task, output_of
from intermission.scratch import holding


def receipt_of(found: Found, row: TaskRow) -> tuple[Path | None, Receipt] | None:
    """The receipt a done task stands on, and where on this machine it lies."""
    if row.state is not TaskState.DONE or not found.row.job.step(row.step).durable:
        return None
    store = found.workspace.open_store()
    receipt = peek(store, row.step, row.key)
    if receipt is None:  # a fan-in that ran without some inputs has another key
        output = output_of(found.ledger, found.row.job.key, row.step, row.index)
        receipt = output and peek(store, row.step, output.task_key)
    if receipt is None:
        return None
    return store.local_path(receipt_key(row.step, receipt.task_key)), receipt


def logs_of(found: Found, row: TaskRow) -> dict[int, Path]:
    """The logs of a task's attempts by number, the latest written last. Empty ones are not kept."""
    pattern = log_name(row.step, row.key, 0).replace(".0.log", ".*.log")
    paths = sorted(found.workspace.folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns)
    return {int(path.name.split(".")[-2]): path for path in paths}


def history_of(found: Found, row: TaskRow) -> list[Event]:
    """Every state that a task has been in, in order."""
    events = events_after(found.ledger, 0, found.row.job.key)
    return [event for event in events if event.task_id == row.id and event.progress is None]


def refusal(refusals: int, message: str | None) -> str:
    """Why a task waits that so many hosts could not run."""
    if refusals >= STUCK_HOSTS:
        return f"no worker can run it, say {refusals} hosts: {message}"
    hosts = "a host" if refusals == 1 else f"{refusals} hosts"
    return f"waits for another worker, because {hosts} can't run it: {message}"


def why(found: Found, row: TaskRow) -> str:
    """One line: why a task ran, was reused, or has not run."""
    match row.state:
        case TaskState.DONE:
            return _why_done(found, row)
        case TaskState.FAILED:
            if row.code == Reason.LOST:
                return f"failed: {row.message}"
            return f"failed after {row.attempts} of its attempts: {row.message}"
        case TaskState.CANCELLED:
            return f"cancelled: {row.message}"
        case TaskState.BLOCKED:
            return f"waits for {', '.join(_waits_for(found, row))}"
        case TaskState.RETRYING:
            when = "" if row.ready_ms is None else f" at {timestamp(row.ready_ms)}"
            return f"runs again{when} because attempt {row.attempts} failed: {row.message}"
        case TaskState.ABANDONED if row.refusals:
            return refusal(row.refusals, row.message)
        case TaskState.ABANDONED | TaskState.CORRUPT:
            return f"will run again because of an earlier end: {row.message}"
        case TaskState.PENDING:
            return f"will run because {_reason_now(found, row)}"
        case _:
            return f"runs because {_reason_now(found, row)}"


def _why_done(found: Found, row: TaskRow) -> str:
    if not found.row.job.step(row.step).durable:
        return "ran because a step with durable=False runs once in every job: it keeps no receipt"
    known = receipt_of(found, row)
    if known is None:
        return "done, says the ledger, but its receipt is gone"
    _, receipt = known
    attempt = f"attempt {receipt.attempt} from {timestamp(receipt.ended_ms)}"
    if row.adopted:
        return f"reused: the receipt of {attempt} has the same key"
    earlier = [other for other in _others(found, row) if other.ended_ms < receipt.ended_ms]
    return f"ran because {reason(row.chunk, receipt.parts, earlier)}; {attempt}"


def _others(found: Found, row: TaskRow) -> list[Receipt]:
    """The receipts that other jobs left for the step of a task."""
    own = {row.key for row in every_task(found.ledger, found.row.job.key, step=row.step)}
    return receipts_of(found.workspace.open_store(), row.step, besides=own)


@holding()
def _reason_now(found: Found, row: TaskRow) -> str:
    job, store = found.row.job, found.workspace.open_store()
    scratch = found.workspace.scratch
    plans: dict[str, Iterable[str]] = {}
    for spec in plan_steps(job):
        output = output_of(found.ledger, job.key, spec.name)
        if output is not None:
            plans[spec.name] = planned_chunks(store, output, scratch)
    spec = job.step(row.step)
    now = parts(job, spec, Keys(job, plans).upstream(spec, row.chunk))
    return reason(row.chunk, now, _others(found, row))


def _waits_for(found: Found, row: TaskRow) -> list[str]:
    """The steps upstream that have tasks to finish first."""
    counts = found.row.counts
    names = [edge.upstream for edge in found.row.job.step(row.step).edges]
    unfinished = [name for name in names if counts.get(name, {}).keys() - FINISHED]
    return unfinished or names
