"""Writing outcomes into the ledger: completions with what they unblock, failures with delays.

Shared by every host of a worker, and by the simulator.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path

from intermission.engine.planning import Plans, expand, plan_steps
from intermission.engine.receipt import (
    fetched_files,
    quarantine,
    receipt_key,
    withdraw,
)
from intermission.errors import NotFound, StalePlans
from intermission.model import (
    Completion,
    Failure,
    FileRef,
    Job,
    Lease,
    Output,
    Receipt,
)
from intermission.pipeline.chunk import ChunkFile, parted
from intermission.pipeline.context import RESULT_NAME
from intermission.ports.ledger import Ledger, every_receipt, output_of
from intermission.ports.slot_protocol import Failed
from intermission.ports.store import Store
from intermission.scratch import holding
from intermission.telemetry import reached

Record = Callable[[Sequence[Completion]], list[bool]]

PAGE_TASKS = 4000
"""As many tasks of a plan are added in one transaction."""


def complete(
    ledger: Ledger,
    store: Store,
    job: Job,
    done: Sequence[tuple[Lease, Completion]],
    scratch: Path,
    record: Record | None = None,
) -> list[bool]:
    """Record completions of one job's tasks; which were accepted.

    One transaction for as many as follow each other, except that each plan has its own: the
    tasks it adds hang on which other plans are done. `record` is the ledger's `complete`, or does
    more.
    """
    if not done:
        return []
    record = record or ledger.complete
    reached("before-complete")
    plans = {spec.name for spec in plan_steps(job)}
    accepted: list[bool] = []
    for is_plan, some in groupby(done, lambda one: one[0].step in plans):
        if is_plan:
            accepted += [_complete_plan(ledger, store, job, *one, scratch, record) for one in some]
        else:
            accepted += record([completion for _, completion in some])
    reached("after-complete")
    return accepted


@holding()
def _complete_plan(
    ledger: Ledger,
    store: Store,
    job: Job,
    lease: Lease,
    completion: Completion,
    scratch: Path,
    record: Record,
) -> bool:
    """Add a plan's tasks a page at a time, and close it with the last one.

    Each page is idempotent: after a crash, whoever has the plan next adds them again.
    """
    while True:
        plans = _plans(ledger, store, job, lease, completion, scratch)
        totals: Counter[str] = Counter()
        tasks = expand(job, plans, lease.step)
        page = list(islice(tasks, PAGE_TASKS))
        while True:
            reached("before-expand")
            totals.update(task.step for task in page)
            following = list(islice(tasks, PAGE_TASKS))
            if not following or not ledger.expand(lease.task_id, lease.fence, lease.key, page):
                break  # the last page; or the lease is lost, or all of this was done before
            page = following
        closed = replace(completion, tasks=page, totals=dict(totals), plans=frozenset(plans))
        try:
            (accepted,) = record([closed])
        except StalePlans:  # another plan finished in between: compute the tasks again
            continue
        return accepted


def _plans(
    ledger: Ledger, store: Store, job: Job, lease: Lease, completion: Completion, scratch: Path
) -> Plans:
    """The plans that are done, the one that ends now included."""
    receipt = completion.receipt
    plans: dict[str, Iterable[str]] = {}
    for spec in plan_steps(job):
        if spec.name == lease.step:
            output = Output(lease.key, completion.result, receipt.files if receipt else ())
        else:
            output = output_of(ledger, job.key, spec.name)
        if output is not None:
            plans[spec.name] = planned_chunks(store, output, scratch)
    return plans


def planned_chunks(store: Store, output: Output, scratch: Path) -> Iterable[str]:
    """The chunks that a plan found, as canonical texts; walk along them while you hold them."""
    if output.result:
        return parted(output.result)
    return ChunkFile(fetched_files(store, output, scratch)[RESULT_NAME])


def failure(
    job: Job, lease: Lease, failed: Failed, delays_s: Sequence[float], jitter: float = 0.0
) -> Failure:
    """A failed attempt as the ledger takes it: when to try again is decided here."""
    waits = job.step(lease.step).retry_delays_s or tuple(delays_s) or (0.0,)
    delay_s = failed.wait_s
    if delay_s is None:
        delay_s = waits[min(lease.attempt, len(waits)) - 1]
    return Failure(
        lease.task_id,
        lease.fence,
        failed.error,
        failed.message,
        failed.permanent,
        delay_s * random.uniform(1 - jitter, 1 + jitter),
        lease.key,
        failed.code,
    )


def invalidate(
    ledger: Ledger, store: Store, job: Job, lost: Mapping[str, Sequence[str]], reason: str
) -> int:
    """Send tasks whose bytes are lost back to work. How many tasks changed.

    `lost` has, by the key of a receipt, the artifacts that are missing or altered. What hangs on
    them keeps its receipts: once the bytes are there again, it finds them and is done, unless it
    was made from others. After a crash in between, the loss is noticed again.
    """
    files = {key for keys in lost.values() for key in keys}
    found = [one for one in every_receipt(ledger, job.key) if _names(one[1].files, files)]
    own = _read(store, (receipt_key(row.step, output.task_key) for row, output in found))
    changed = ledger.invalidate([row.id for row, _ in found], reason=reason)
    quarantine(store, sorted(files))
    for key, judged in own.items():
        if _names(_files(judged), files):  # else another noticed first, and it is made again
            withdraw(store, key, judged)
    return len(changed)


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
