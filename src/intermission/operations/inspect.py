"""What people ask about a task: why it ran, what it left behind, what happened to it.

Nothing here changes a ledger or a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from intermission.backends.executor.slot import log_name
from intermission.backends.work_source.worker_locks import is_of_this_machine
from intermission.composition.event_log import last_event, timestamp
from intermission.engine.completion import planned_chunks
from intermission.engine.planning import Keys, parts, plan_steps
from intermission.engine.receipt import peek, receipt_key
from intermission.model import FINISHED, HELD, Event, Reason, Receipt, TaskRow, TaskState
from intermission.operations.documents import WaitDocument
from intermission.operations.explain import reason, receipts_of
from intermission.operations.job_lookup import Found
from intermission.operations.waiting import reasons, remedies, waits_of
from intermission.ports.ledger import STUCK_HOSTS, Ledger, output_of
from intermission.ports.store import Store
from intermission.scratch import holding

HISTORY_MAX = 10_000
"""So many events of a job are read for the history of one task."""
_CLOCK_MS = 250
"""An event may be so much later than the time in the row that it tells of."""
COMPARED_MAX = 1000
"""Receipts that are compared to tell why a task runs."""
JOBS_COMPARED = 10


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


def history_of(found: Found, row: TaskRow) -> tuple[list[Event], int]:
    """The states that a task has been in, in order, and after which event: 0 is all of them.

    Of a job with more events than `HISTORY_MAX`, about so many are read, back from the task's end.
    """
    ledger, job_key, after = found.ledger, found.row.job.key, 0
    events = ledger.events(0, job=job_key, limit=HISTORY_MAX)
    if len(events) == HISTORY_MAX:
        end_ms = None if row.ended_ms is None else row.ended_ms + _CLOCK_MS
        events, after = _events_until(ledger, job_key, last_event(ledger, job_key, end_ms))
    return [one for one in events if one.task_id == row.id and one.progress is None], after


def _events_until(ledger: Ledger, job_key: str, last: int) -> tuple[list[Event], int]:
    """The events of a job up to this one, not all of them, and after which number they begin."""
    found: list[Event] = []
    # Other jobs may have most of the numbers, so strides grow until they have many of this one's.
    first, stride = last, HISTORY_MAX
    while first and len(found) < HISTORY_MAX:
        after = max(0, first - stride)
        page = ledger.events(after, job=job_key, limit=HISTORY_MAX)
        page = [event for event in page if event.seq <= first]
        if len(page) == HISTORY_MAX and stride > HISTORY_MAX:  # it may not reach up to `first`
            stride //= 2
        else:
            first, stride, found = after, 2 * stride, page + found
    return found, first


def ran_elsewhere(found: Found, row: TaskRow) -> str | None:
    """The worker of another machine that ran a task last; None where this one did, or none has."""
    events, _ = history_of(found, row)
    worker = next((event.worker for event in reversed(events) if event.worker), None)
    return None if worker is None or is_of_this_machine(worker) else worker


def refusal(refusals: int, message: str | None) -> str:
    """Why a task waits that so many hosts could not run."""
    if refusals >= STUCK_HOSTS:
        return f"no worker can run it, say {refusals} hosts: {message}"
    hosts = "a host" if refusals == 1 else f"{refusals} hosts"
    return f"waits for another worker, because {hosts} can't run it: {message}"


def waits_of_task(found: Found, row: TaskRow) -> list[WaitDocument]:
    """What keeps an unfinished task from starting, or those that it waits for."""
    if row.state in FINISHED:
        return []
    is_blocked = row.state is TaskState.BLOCKED
    waits = waits_of(found, _waits_for(found, row) if is_blocked else [row.step])
    if row.state in HELD:  # it waits for nothing, unless nobody is there who could run it
        return [one for one in waits if one.code == "interrupted"]
    if row.refusals:  # there were workers
        return [one for one in waits if one.code != "no-worker"]
    return waits


def why(found: Found, row: TaskRow, waits: Sequence[WaitDocument]) -> str:
    """One line: why a task ran, was reused, or has not run."""
    if not waits:
        return _why(found, row)
    if row.state is TaskState.BLOCKED:
        upstream = ", ".join(dict.fromkeys(step for wait in waits for step in wait.steps))
        return f"{_why(found, row)}; {upstream} waits because {reasons(waits)}. {remedies(waits)}"
    return f"waits because {reasons(waits)}; then it {_why(found, row)}. {remedies(waits)}"


def _why(found: Found, row: TaskRow) -> str:
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
            return f"will run because {_why_it_runs(found, row)}"
        case _:
            return f"runs because {_why_it_runs(found, row)}"


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
    why = what_changed(found, row, receipt.parts, before_ms=receipt.ended_ms)
    return f"ran because {why}; {attempt}"


def what_changed(
    found: Found, row: TaskRow, now: Mapping[str, str], before_ms: int | None = None
) -> str:
    """What changed since the nearest receipt that another job left for a task's step and chunk.

    A step may have left a million. Those that the newest jobs of the source have at the same
    index are compared, and of a small step some thousand others too.
    """
    store = found.workspace.open_store()
    tasks = found.ledger.tasks(found.row.job.key, step=row.step, limit=COMPARED_MAX + 1)
    known = list(_in_other_jobs(found, row, store))
    is_small = len(tasks) <= COMPARED_MAX
    if is_small:
        own = {task.key for task in tasks}
        known += receipts_of(store, row.step, besides=own, most=COMPARED_MAX)
    if before_ms is not None:
        known = [receipt for receipt in known if receipt.ended_ms < before_ms]
    if not known and not is_small:
        return "no other job of the source in the ledger has this chunk"
    return reason(row.chunk, now, known)


def _in_other_jobs(found: Found, row: TaskRow, store: Store) -> Iterator[Receipt]:
    """What the newest other jobs of the source made at a task's index, where it differs."""
    ledger, own = found.ledger, found.row.job
    for other in ledger.jobs(source=own.source.uri, limit=JOBS_COMPARED):
        output = output_of(ledger, other.job.key, row.step, row.index)
        if other.job.key != own.key and output is not None and output.task_key != row.key:
            receipt = peek(store, row.step, output.task_key)
            if receipt is not None:
                yield receipt


@holding()
def _why_it_runs(found: Found, row: TaskRow) -> str:
    job, store = found.row.job, found.workspace.open_store()
    scratch = found.workspace.scratch
    plans: dict[str, Iterable[str]] = {}
    for spec in plan_steps(job):
        output = output_of(found.ledger, job.key, spec.name)
        if output is not None:
            plans[spec.name] = planned_chunks(store, output, scratch)
    spec = job.step(row.step)
    now = parts(job, spec, Keys(job, plans).upstream(spec, row.chunk))
    return what_changed(found, row, now)


def _waits_for(found: Found, row: TaskRow) -> list[str]:
    """The steps upstream that have tasks to finish first."""
    counts = found.row.counts
    names = [edge.upstream for edge in found.row.job.step(row.step).edges]
    unfinished = [name for name in names if counts.get(name, {}).keys() - FINISHED]
    return unfinished or names
