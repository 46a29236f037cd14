"""Why nothing happens: what keeps the tasks of a job from starting, and what to do about it.

Reads only. Both `why` and `status` tell it, and so does the API.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from intermission.backends.work_source.worker_locks import living
from intermission.composition.event_log import timestamp
from intermission.composition.registries import registered_workers
from intermission.model import CLAIMABLE, HELD, JobState, Limit, StepSpec
from intermission.operations.documents import WaitCode, WaitDocument
from intermission.operations.job_lookup import Found
from intermission.operations.workers import state_of
from intermission.ports.ledger import LedgerReads

ACTIVE = frozenset({JobState.PENDING, JobState.RUNNING, JobState.DRAINING})


class Wait(NamedTuple):
    """One thing that keeps a step's tasks from starting."""

    code: WaitCode
    name: str | None
    """Of the limit or the label."""
    reason: str
    remedy: str


def waits_of(found: Found, steps: Collection[str] = ()) -> list[WaitDocument]:
    """What keeps these steps' tasks from starting; all steps' with a task to start, by default."""
    for row in found.ledger.jobs(found.row.job.key):
        if row.state not in ACTIVE:
            break
        specs = [spec for spec in row.job.steps if not steps or spec.name in steps]
        by_wait: dict[Wait, list[str]] = {}
        is_interrupted = _is_interrupted(found)
        for spec in specs:
            counts = row.counts.get(spec.name, {})
            if is_interrupted and counts.keys() & (CLAIMABLE | HELD):
                by_wait.setdefault(_INTERRUPTED, []).append(spec.name)
            elif counts.keys() & CLAIMABLE:
                for wait in _waits(found, spec):
                    by_wait.setdefault(wait, []).append(spec.name)
        return [WaitDocument(**wait._asdict(), steps=names) for wait, names in by_wait.items()]
    return []


def reasons(waits: Sequence[WaitDocument]) -> str:
    """Why a task waits, within a sentence."""
    return " and because ".join(wait.reason for wait in waits)


def remedies(waits: Sequence[WaitDocument]) -> str:
    """What to do about it, as sentences."""
    return " ".join(dict.fromkeys(wait.remedy for wait in waits))


_INTERRUPTED = Wait(
    "interrupted",
    None,
    "nobody works on the job: the run was interrupted",
    "Run the same command again; progress is saved.",
)


def _is_interrupted(found: Found) -> bool:
    """Whether the command ended that worked on the job. A fleet's jobs are any worker's."""
    if found.app.shared is not None or living(found.workspace):
        return False
    # Who works in a bucket from another machine has no lock here, but marks what it leaves.
    return not found.workspace.is_remote or found.row.state is JobState.DRAINING


def _waits(found: Found, spec: StepSpec) -> list[Wait]:
    """Workers are blamed last: one that has nothing to do is not known, unless it is registered."""
    told = [*_too_early(found), *_limits(found, spec)]
    return told or [*_missing_workers(found, spec)]


def _too_early(found: Found) -> Iterator[Wait]:
    at_ms = found.row.job.not_before_ms
    if at_ms > found.app.clock.now_ms():
        reason = f"it may not begin before {timestamp(at_ms)}"
        remedy = "Wait, or submit the job again without --not-before."
        yield Wait("not-before", None, reason, remedy)


def _limits(found: Found, spec: StepSpec) -> Iterator[Wait]:
    job, ledger = found.row.job, found.ledger
    over = Limit.names(job, spec)
    for limit in ledger.limits():
        if limit.name in over:
            yield from _limit(ledger, limit, limit.name.replace(job.key, job.key[:10]))
    if spec.concurrency is not None:
        held = ledger.held_under(f"step:{job.pipeline}/{spec.name}")
        if held >= spec.concurrency:
            reason = f"step {spec.name} is at its concurrency: {held} of {spec.concurrency} run"
            yield Wait("limit", spec.name, reason, "Wait until one of them ends.")


def _limit(ledger: LedgerReads, limit: Limit, shown: str) -> Iterator[Wait]:
    if limit.paused:
        remedy = f"Resume it: intermission resume {shown}"
        yield Wait("paused", limit.name, f"{shown} is paused", remedy)
        return
    held = 0 if limit.running is None else ledger.held_under(limit.name)
    if limit.running is not None and held >= limit.running:
        reason = f"{shown} is reached: {held} of {limit.running} run"
        remedy = f"Wait, or raise the limit: intermission limit {shown} --running N"
        yield Wait("limit", limit.name, reason, remedy)
    if limit.per_minute is not None:
        reason = f"{shown} lets at most {limit.per_minute:g} tasks begin a minute"
        remedy = f"Wait, or raise the limit: intermission limit {shown} --per-minute N"
        yield Wait("rate", limit.name, reason, remedy)


def _missing_workers(found: Found, spec: StepSpec) -> Iterator[Wait]:
    if found.app.shared is None:
        return
    now_ms = found.app.clock.now_ms()
    rows = registered_workers(found.app.settings)
    online = [row for row in rows if state_of(row, now_ms) not in ("offline", "disabled")]
    label = spec.needs
    if label is not None:
        offered = any(label in row.can for row in online)
        if not offered and not found.ledger.held_under(f"label:{label}"):
            reason = f"no known worker offers the label {label}"
            remedy = f"Start one: intermission worker --can {label}"
            yield Wait("no-label", label, reason, remedy)
    elif not online and not found.ledger.workers():
        reason = "no worker is registered or holds a task"
        yield Wait("no-worker", None, reason, "Start one: intermission worker")
