"""Looking again at what is finished: are the bytes still the ones the receipts name?

Run at every start. A file that was not touched since its task was recorded, or since the
last such look, costs one stat; any other is hashed. What is lost is made again only if something
that has to run needs it, or an output is to be put in place from it: nothing is paid for twice
because an intermediate file was cleaned away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from intermission.engine import completion
from intermission.engine.publish import memory_of, published_name, version_for
from intermission.engine.receipt import is_sound
from intermission.model import FINISHED, EdgeKind, FileRef, Job, StepSpec, TaskRow
from intermission.pipeline.context import RESULT_NAME
from intermission.ports.clock import Clock
from intermission.ports.ledger import Ledger, every_receipt, every_task
from intermission.ports.store import Stat, Store, read_note, write_note

log = logging.getLogger(__name__)


def verify(
    ledger: Ledger,
    store: Store,
    job: Job,
    scratch: Path,
    clock: Clock,
    *,
    outputs: Store | None = None,
    thorough: bool = False,
) -> int:
    """Send done tasks back to work whose files are lost or altered, and needed. How many changed.

    `outputs` is where they are published.
    """
    started_ms = clock.now_ms()
    looked_ms = read_note(store, f"looks/{job.key}.json").get("at_ms") or 0
    lost: dict[str, list[str]] = {}
    rows: dict[str, TaskRow] = {}
    missing: set[str] = set()
    suspicious = False
    stat_of = _looker(store)
    for row, output in every_receipt(ledger, job.key):
        trusted_ms = 0 if thorough else max(row.ended_ms or 0, looked_ms)
        for file in output.files:
            stat = stat_of(file.key)
            if stat is not None and stat.modified_ms <= trusted_ms:
                continue
            suspicious = True
            if not is_sound(store, file, scratch):
                lost.setdefault(output.task_key, []).append(file.key)
                rows[output.task_key] = row
                if not _is_published(store, outputs, job, job.step(row.step), row.index, file):
                    missing.add(output.task_key)
    needed = _needed(ledger, job, rows, missing)
    if idle := len(lost) - len(needed):
        log.warning("files of %s of job %s are lost; nothing needs them", idle, job.key[:10])
    lost = {key: files for key, files in lost.items() if key in needed}
    if lost:
        return completion.invalidate(ledger, store, job, lost, "its artifact is missing or altered")
    if suspicious and not idle:
        write_note(store, f"looks/{job.key}.json", {"at_ms": started_ms})
    return 0


def _needed(
    ledger: Ledger, job: Job, lost: Mapping[str, TaskRow], missing: Collection[str]
) -> set[str]:
    """Of the tasks with lost files, by key, those that must be made again."""
    unfinished = {
        (row.step, row.index)
        for row in (every_task(ledger, job.key) if lost else ())
        if row.state not in FINISHED
    }
    names = {spec.name for spec in job.steps}
    unplanned = {name for name in names if not ledger.outputs(job.key, name, limit=1)}
    needed = {key for key in lost if key in missing}
    while True:
        wanted = unfinished | {(lost[key].step, lost[key].index) for key in needed}
        more = {
            key
            for key, row in lost.items()
            if key not in needed and _is_input(job, row, wanted, unplanned)
        }
        if not more:
            return needed
        needed |= more


def _is_input(
    job: Job, row: TaskRow, wanted: Collection[tuple[str, int]], unplanned: Collection[str]
) -> bool:
    """Whether a task is an input of one of these, or of a step whose tasks are not known yet."""
    for spec in job.steps:
        kinds = {edge.kind for edge in spec.edges if edge.upstream == row.step}
        if spec.plan == row.step and spec.name in unplanned:
            return True
        if kinds and spec.name in unplanned:
            return True
        indexes = {index for step, index in wanted if step == spec.name}
        if indexes and (kinds - {EdgeKind.SAME} or (kinds and row.index in indexes)):
            return True
    return False


def _is_published(
    store: Store, outputs: Store | None, job: Job, spec: StepSpec, index: int, file: FileRef
) -> bool:
    """Whether a file is in its place among the outputs, or has none: its artifact may be gone."""
    if outputs is None or spec.publish is None or file.name == RESULT_NAME:
        return True
    name = published_name(job, spec, index, file, version_for(store, job, spec))
    stat, known = outputs.stat(name), memory_of(store, name)
    return stat is not None and known.get("version") == stat.version


def _looker(store: Store) -> Callable[[str], Stat | None]:
    """How to look at one artifact after the other. A list is one request for a thousand."""
    if store.local_path("artifacts") is not None:
        return store.stat
    return {stat.key: stat for stat in store.list("artifacts/")}.get
