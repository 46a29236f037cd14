"""Saying in one line why a task ran, has to run, or was reused."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from intermission.engine.planning import Keys, Plans, expand, parts
from intermission.engine.receipt import peek, receipt_key
from intermission.errors import NotFound
from intermission.model import Job, Receipt, Task
from intermission.ports.store import Store


def receipts_of(
    store: Store, step: str, *, besides: Collection[str], most: int | None = None
) -> list[Receipt]:
    """The receipts of a step under other keys than a job's own ones, newest first.

    With `most`, no more than so many are looked at.
    """
    own = {receipt_key(step, key) for key in besides}
    found: list[Receipt] = []
    for stat in islice(store.list(f"receipts/{step}/"), most):
        if stat.key in own:
            continue
        try:
            found.append(Receipt.from_json(store.read(stat.key)))
        except (ValueError, TypeError, KeyError, NotFound):
            continue
    return sorted(found, key=lambda receipt: -receipt.ended_ms)


def reason(chunk: str | None, now: Mapping[str, str], known: list[Receipt]) -> str:
    """What changed since the nearest receipt of the same step and chunk in another job."""
    alike = [receipt for receipt in known if receipt.chunk == chunk]
    if not alike:
        return "no earlier run has this chunk" if known else "it never ran before"
    nearest = min(alike, key=lambda receipt: len(_differences(receipt.parts, now)))
    return "; ".join(_differences(nearest.parts, now)) or "its earlier receipt is gone"


def _differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for name in sorted(then.keys() | now.keys()):
        before, after = then.get(name), now.get(name)
        if before == after:
            continue
        if name.startswith("input "):
            lines.append(f"{name} changed")
        elif name == "source content":
            lines.append("the source's content changed")
        else:
            lines.append(f"{name} was {before or 'not there'}, is {after or 'not there'}")
    return lines


def forecast(
    store: Store, job: Job, plans: Plans, known_done: Collection[str] = ()
) -> Iterator[tuple[Task, bool, str]]:
    """Every task that can be named now, whether it would be reused, and why. Changes nothing.

    `known_done` has the keys of the tasks without receipts that the ledger knows as done.
    """
    keys = Keys(job, plans)
    known: dict[str, list[Receipt]] = {}
    tasks = list(expand(job, plans))
    own = {task.key for task in tasks}
    for task in tasks:
        spec = job.step(task.step)
        if not spec.durable:
            done = task.key in known_done
            yield (
                task,
                done,
                "the ledger has its result" if done else "not done yet; no receipt",
            )
            continue
        receipt = peek(store, task.step, task.key)
        if receipt is None:
            if task.step not in known:
                known[task.step] = receipts_of(store, task.step, besides=own)
            now = parts(job, spec, keys.upstream(spec, task.chunk))
            yield task, False, reason(task.chunk, now, known[task.step])
        elif lost := lost_file(store, receipt):
            yield task, False, f"its artifact {lost} is missing or altered"
        else:
            yield task, True, f"the receipt of attempt {receipt.attempt} has the same key"


def lost_file(store: Store, receipt: Receipt) -> str | None:
    """The name of a file that is plainly not what the receipt says; bytes are not hashed."""
    for file in receipt.files:
        stat = store.stat(file.key)
        if stat is None or stat.size_bytes != file.size_bytes:
            return file.name
    return None
