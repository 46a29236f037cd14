"""Doing again by hand what is done: receipts are withdrawn first, so that nobody adopts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from intermission.engine.graph import EVERY, dependants
from intermission.engine.receipt import receipt_key, withdraw
from intermission.errors import NotFound
from intermission.model import Job, TaskRow
from intermission.ports.ledger import Ledger, every_output, output_of
from intermission.ports.store import Store


def redo(ledger: Ledger, store: Store, job: Job, rows: Sequence[TaskRow], reason: str) -> int:
    """Send done tasks back to work by hand, sound as they are, with everything that hangs on them.

    Their receipts go into quarantine first, so that no attempt finds and adopts them.
    """
    outputs = [(row.step, output_of(ledger, job.key, row.step, row.index)) for row in rows]
    own = [receipt_key(step, output.task_key) for step, output in outputs if output]
    withdraw_all(store, [*reversed(_behind(ledger, job, rows)), *own])
    return len(ledger.invalidate([row.id for row in rows], reason=reason))


def withdraw_all(store: Store, keys: Iterable[str]) -> None:
    """Put the receipts that stand now into quarantine, sound as they may be: on request."""
    for key in keys:
        with suppress(NotFound):
            withdraw(store, key, store.read(key))


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
        for one in every_output(ledger, job.key, spec.name)
        if (output := one.output) is not None and wanted[spec.name] & {one.index, EVERY}
    ]
