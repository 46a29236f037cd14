"""Writing outcomes into the ledger: completions with what they unblock, failures with delays.

Shared by every host of a worker, and by the simulator.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from intermission.engine.outcome import Failed
from intermission.engine.plan import Plans, chunks, expand, plan_steps
from intermission.engine.receipt import fetch_files, quarantine, receipt_key
from intermission.engine.run_task import result_text
from intermission.errors import StalePlans
from intermission.model import (
    Completion,
    Failure,
    Job,
    Lease,
    Output,
    StepKind,
)
from intermission.ports.ledger import Ledger
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

    One transaction for all of them, except that each plan has its own: the tasks it adds hang
    on which other plans are done.
    """
    if not done:
        return []
    reached("before-complete")
    plans = [job.step(lease.step).kind is StepKind.PLAN for lease, _ in done]
    others = [completion for (_, completion), plan in zip(done, plans, strict=True) if not plan]
    answers = iter(ledger.complete(others) if others else ())
    accepted = [
        _complete_plan(ledger, store, job, lease, completion, scratch) if plan else next(answers)
        for (lease, completion), plan in zip(done, plans, strict=True)
    ]
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
    return output.result or result_text(output, fetch_files(store, output, scratch))


def failure(
    job: Job, lease: Lease, failed: Failed, delays_s: Sequence[float], jitter: float = 0.0
) -> Failure:
    """A failed attempt as the ledger takes it: when to try again is decided here."""
    waits = job.step(lease.step).retry_delays_s or tuple(delays_s) or (0.0,)
    delay_s = waits[min(lease.attempt, len(waits)) - 1]
    return Failure(
        failed.task_id,
        failed.fence,
        failed.error,
        failed.message,
        failed.permanent,
        delay_s * random.uniform(1 - jitter, 1 + jitter),
    )


def spoil(
    ledger: Ledger, store: Store, job: Job, lost: Mapping[str, Sequence[str]], reason: str
) -> int:
    """Send tasks whose bytes are lost back to work, and everything that hangs on them.

    `lost` has, by the key of a receipt, the artifacts that are missing or altered. Their
    receipts go into quarantine with what is left of the files. After a crash in between, the
    task is claimed, finds its receipt unsound and puts it into quarantine itself.
    """
    ids = [row.id for row, output in ledger.receipts(job.key) if output.task_key in lost]
    spoiled = ledger.spoil(ids, reason=reason)
    for row in reversed(spoiled):
        quarantine(store, [receipt_key(row.step, row.key)])
    for keys in lost.values():
        quarantine(store, keys)
    return len(spoiled)
