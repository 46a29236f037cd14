"""Writing outcomes into the ledger: completions with what they unblock, failures with delays.

Shared by every host of a worker, and by the simulator.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from intermission.engine.graph import EVERY, dependants
from intermission.engine.planning import Plans, chunks, expand, plan_steps
from intermission.engine.receipt import FetchedFiles, quarantine, receipt_key, withdraw
from intermission.engine.run_task import result_text
from intermission.errors import NotFound, StalePlans
from intermission.model import (
    Completion,
    Failure,
    FileRef,
    Job,
    Lease,
    Output,
    Receipt,
    TaskRow,
)
from intermission.ports.ledger import Ledger
from intermission.ports.slot_protocol import Failed
from intermission.ports.store import Store
from intermission.telemetry import reached


def complete(
    ledger: Ledger,
    store: Store,
    job: Job,
    done: Sequence[tuple[Lease, Completion]],
    scratch: Path,
) -> list[bool]:
    """Record completions of one job's tasks; which were accepted.

    One transaction for as many as follow each other, except that each plan has its own: the
    tasks it adds hang on which other plans are done.
    """
    if not done:
        return []
    reached("before-complete")
    plans = {spec.name for spec in plan_steps(job)}
    accepted: list[bool] = []
    for is_plan, some in groupby(done, lambda one: one[0].step in plans):
        if is_plan:
            accepted += [_complete_plan(ledger, store, job, *one, scratch) for one in some]
        else:
            accepted += ledger.complete([completion for _, completion in some])
    reached("after-complete")
    return accepted


def _complete_plan(
    ledger: Ledger, store: Store, job: Job, lease: Lease, completion: Completion, scratch: Path
) -> bool:
    while True:
        planned = _with_tasks(ledger, store, job, lease, completion, scratch)
        try:
            (accepted,) = ledger.complete([planned])
        except StalePlans:  # another plan finished in between: compute the tasks again
            continue
        return accepted


def _with_tasks(
    ledger: Ledger, store: Store, job: Job, lease: Lease, completion: Completion, scratch: Path
) -> Completion:
    """A plan's completion, with the tasks that exist from now on."""
    plans: dict[str, list[str]] = {}
    for spec in plan_steps(job):
        outputs = ledger.outputs(job.key, spec.name)
        if spec.name != lease.step and outputs and outputs[0] is not None:
            plans[spec.name] = chunks(output_text(store, outputs[0], scratch))
    receipt = completion.receipt
    own = Output(lease.key, completion.result, receipt.files if receipt else ())
    plans[lease.step] = chunks(output_text(store, own, scratch))
    reached("before-expand")
    tasks = expand(job, _ordered(job, plans), lease.step)
    return replace(completion, tasks=tasks, plans=frozenset(plans))


def _ordered(job: Job, plans: Plans) -> Plans:
    return {spec.name: plans[spec.name] for spec in plan_steps(job) if spec.name in plans}


def output_text(store: Store, output: Output, scratch: Path) -> str:
    return output.result or result_text(output, FetchedFiles(store, output, scratch))


def failure(
    job: Job, lease: Lease, failed: Failed, delays_s: Sequence[float], jitter: float = 0.0
) -> Failure:
    """A failed attempt as the ledger takes it: when to try again is decided here."""
    waits = job.step(lease.step).retry_delays_s or tuple(delays_s) or (0.0,)
    delay_s = failed.wait_s
    if delay_s is None:
        delay_s = waits[min(lease.attempt, len(waits)) - 1]
    return Failure(
        failed.task_id,
        failed.fence,
        failed.error,
        failed.message,
        failed.permanent,
        delay_s * random.uniform(1 - jitter, 1 + jitter),
        lease.key,
    )


def invalidate(
    ledger: Ledger, store: Store, job: Job, lost: Mapping[str, Sequence[str]], reason: str
) -> int:
    """Send tasks whose bytes are lost back to work, and everything that hangs on them.

    `lost` has, by the key of a receipt, the artifacts that are missing or altered. The receipts
    of what hangs on them are withdrawn before anybody can claim anything, and only if they were
    read while the lost bytes were still the standing ones: another process may have noticed
    first, and may be done with all of it. After a crash in between, the loss is noticed again.
    """
    files = {key for keys in lost.values() for key in keys}
    found = [one for one in ledger.receipts(job.key) if _names(one[1].files, files)]
    behind = _read(store, _behind(ledger, job, [row for row, _ in found]))
    own = _read(store, (receipt_key(row.step, output.task_key) for row, output in found))
    unsound = {key: data for key, data in own.items() if _names(_files(data), files)}
    current = [row for row, out in found if receipt_key(row.step, out.task_key) in unsound]
    for key in reversed(_behind(ledger, job, current)):
        if key in behind:
            withdraw(store, key, behind[key])
    spoiled = ledger.invalidate([row.id for row, _ in found], reason=reason)
    quarantine(store, sorted(files))
    for key, judged in unsound.items():
        withdraw(store, key, judged)
    return len(spoiled)


def redo(ledger: Ledger, store: Store, job: Job, rows: Sequence[TaskRow], reason: str) -> int:
    """Send done tasks back to work by hand, sound as they are, with everything that hangs on them.

    Their receipts go into quarantine first, so that no attempt finds and adopts them.
    """
    outputs = {row.id: ledger.outputs(job.key, row.step)[row.index] for row in rows}
    own = [receipt_key(row.step, out.task_key) for row in rows if (out := outputs[row.id])]
    quarantine(store, [*reversed(_behind(ledger, job, rows)), *own])
    return len(ledger.invalidate([row.id for row in rows], reason=reason))


def _names(files: Iterable[FileRef], keys: Collection[str]) -> bool:
    return any(file.key in keys for file in files)


def _files(data: bytes) -> tuple[FileRef, ...]:
    """What the receipt with these bytes names; nothing, if it is none."""
    try:
        return Receipt.from_json(data).files
    except (ValueError, TypeError, KeyError):
        return ()


def _read(store: Store, keys: Iterable[str]) -> dict[str, bytes]:
    """The objects that are there."""
    found: dict[str, bytes] = {}
    for key in keys:
        with suppress(NotFound):
            found[key] = store.read(key)
    return found


def _behind(ledger: Ledger, job: Job, rows: Iterable[TaskRow]) -> list[str]:
    """Where the receipts of the done tasks lie that hang on these, upstream first."""
    wanted: dict[str, set[int | None]] = {}
    for row in rows:
        for step, index in dependants(job, row.step, row.index):
            wanted.setdefault(step, set()).add(index)
    return [
        receipt_key(spec.name, output.task_key)
        for spec in job.steps
        if spec.name in wanted and spec.durable
        for index, output in enumerate(ledger.outputs(job.key, spec.name))
        if output is not None and wanted[spec.name] & {index, EVERY}
    ]
