"""Upkeep of a workspace: what attempts left behind that no receipt names, and old outputs.

An artifact is written before the receipt that names it, so a file without a receipt may
belong to a commit that is under way. It is removed only when it was already unnamed in an
earlier pass, at least a grace ago, and has not been touched since; the grace must be longer
than a lease. A task may run longer than any grace, and what it wrote first is not named before it
ends: so files of an attempt whose task is unfinished in the ledger, under that attempt's fence,
stay, on whatever host it runs. A workspace with a living worker of this machine is left alone.

Outputs of a job that another has taken the place of are removed in the same way: whoever plays
them has the grace to come to an end. So are those of a job that failed or was cancelled while
another is in use. A file that somebody else has written since stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath

from intermission.engine.publish import (
    VERSIONS,
    Versions,
    change_versions,
    memory_key,
    memory_of,
    read_versions,
)
from intermission.errors import NotFound
from intermission.maintenance.superseded_outputs import (
    BEING_COLLECTED,
    COLLECTED,
    is_collected,
    mark_collected,
)
from intermission.model import HELD, Receipt, TaskState
from intermission.ports.clock import Clock
from intermission.ports.ledger import Ledger, every_task
from intermission.ports.store import Stat, Store, read_note, write_note

_MEMORY_KEY = "garbage.json"

UnderWay = Callable[[], Collection[tuple[str, int]]]
"""The steps and fences of tasks that somebody may be working on."""

GivenUp = Callable[[str, str], int | None]
"""When a job of a pipeline failed or was cancelled, in ms; None for one that may go on."""


@dataclass(frozen=True)
class Swept:
    """What a pass did: files and bytes removed, and files that the next pass may remove."""

    removed: int
    removed_bytes: int
    waiting: int
    in_use: bool = False
    """A worker is alive there, so nothing was looked at."""
    needs_ledger: bool = False
    """Nothing was looked at, because only a shared ledger knows who works there."""


def collect(
    store: Store,
    clock: Clock,
    *,
    grace_s: float,
    dry_run: bool = False,
    outputs_of: Callable[[str], Store | None] = lambda _: None,
    given_up_ms: GivenUp = lambda _, __: None,
    under_way: UnderWay = frozenset[tuple[str, int]],
) -> Swept:
    """One pass. Two passes, a grace apart, remove a file.

    `outputs_of` opens the outputs of the job with a key, where it can. `given_up_ms` is asked
    again before each file goes.
    """
    sweep = _Sweep(store, clock.now_ms(), int(grace_s * 1000), dry_run)
    # Artifacts are listed before the ledger is asked, and that before receipts are read: whoever
    # ends in between has its receipt by then.
    candidates = {stat.key: stat for stat in store.list("artifacts/")}
    held = under_way() if candidates else ()
    candidates = {key: stat for key, stat in candidates.items() if attempt_of(key) not in held}
    for key in _named(store):
        candidates.pop(key, None)
    for key, stat in candidates.items():
        sweep.take(key, stat, lambda key=key: store.delete(key))
    for pipeline, versions in _in_use(store):
        ended_ms = _given_up(store, versions, partial(given_up_ms, pipeline))
        outputs = outputs_of(versions.front or "") if versions.former or ended_ms else None
        if outputs is not None:
            _sweep_outputs(sweep, outputs, pipeline, versions, ended_ms, given_up_ms)
    if not dry_run:
        write_note(store, _MEMORY_KEY, sweep.waiting)
    return Swept(sweep.removed, sweep.removed_bytes, len(sweep.waiting))


def attempts_under_way(ledger: Ledger | None, store: Store) -> set[tuple[str, int]]:
    """The step and the fence of every task of a workspace that somebody works on, or may.

    A late owner of an abandoned task may still end it. Chunks are not told apart: a fan-in over
    skipped chunks has a key that its row does not say.
    """
    if ledger is None:
        return set()
    keys = [PurePosixPath(stat.key).stem for stat in store.list("jobs/")]
    return {
        (row.step, row.fence)
        for key in keys
        for row in every_task(ledger, key, states=[*HELD, TaskState.ABANDONED])
    }


def attempt_of(key: str) -> tuple[str, int] | None:
    """The step and the fence of the attempt that an artifact is of; None where the key is none."""
    parts = key.split("/")
    fence = parts[3].partition("-")[0] if len(parts) > 4 and parts[0] == "artifacts" else ""
    return (parts[1], int(fence)) if fence.isdecimal() else None


class _Sweep:
    """One pass over what may go."""

    def __init__(self, store: Store, now_ms: int, grace_ms: int, dry_run: bool) -> None:
        self.store = store
        self.waiting: dict[str, int] = {}
        self.removed = 0
        self.removed_bytes = 0
        self.is_dry = dry_run
        self._seen: dict[str, int] = read_note(store, _MEMORY_KEY)
        self._now_ms = now_ms
        self._oldest_ms = now_ms - grace_ms

    def take(self, key: str, stat: Stat, remove: Callable[[], bool | None]) -> None:
        """Remove an object if it was seen here a grace ago and is as old; else see it now.

        `remove` says False if it is wanted after all.
        """
        first_ms = self._seen.get(key, self._now_ms)
        if key not in self._seen or max(first_ms, stat.modified_ms) > self._oldest_ms:
            self.waiting[key] = first_ms
            return
        if self.is_dry or remove() is not False:
            self.removed += 1
            self.removed_bytes += stat.size_bytes


def _named(store: Store) -> set[str]:
    named: set[str] = set()
    for stat in store.list("receipts/"):
        try:
            named.update(file.key for file in Receipt.from_json(store.read(stat.key)).files)
        except (ValueError, TypeError, KeyError, NotFound):
            continue  # a task will find it unsound and put it into quarantine
    return named


def _in_use(store: Store) -> Iterator[tuple[str, Versions]]:
    """The pipelines that have outputs which somebody is led to: others may be in nobody's way."""
    for stat in store.list(f"{VERSIONS}/"):
        pipeline = PurePosixPath(stat.key).stem
        versions = read_versions(store, pipeline)
        if versions is not None and versions.front is not None:
            yield pipeline, versions


def _given_up(
    store: Store, versions: Versions, given_up_ms: Callable[[str], int | None]
) -> dict[str, int]:
    """When jobs failed or were cancelled whose outputs may lie beside those in use."""
    keys = (PurePosixPath(stat.key).stem for stat in store.list("jobs/"))
    others = [key for key in keys if key not in (versions.front, *versions.former)]
    asked = ((key, given_up_ms(key)) for key in others if not is_collected(store, key))
    return {key: at_ms for key, at_ms in asked if at_ms is not None}


def _sweep_outputs(
    sweep: _Sweep,
    outputs: Store,
    pipeline: str,
    versions: Versions,
    ended_ms: dict[str, int],
    given_up_ms: GivenUp,
) -> None:
    """Take the outputs of a pipeline that nobody is led to, or not any more."""
    store = sweep.store
    free_since_ms = {**dict.fromkeys(versions.former, 0), **ended_ms}
    marked: set[str] = set()
    left: set[str] = set()

    def remove(job: str, name: str) -> bool:
        """Superseded outputs may go. A job that was given up may have begun again."""
        if job not in versions.former:
            if job not in marked:  # whoever begins after the look sees the mark
                mark_collected(store, job, BEING_COLLECTED)
                marked.add(job)
            if given_up_ms(pipeline, job) is None:
                left.add(job)
                return False
        outputs.delete(name)
        store.delete(memory_key(name))
        return True

    for stat in list(store.list("published/")):
        name = stat.key.removeprefix("published/").removesuffix(".json")
        known = memory_of(store, name)
        job = known.get("job")
        if job not in free_since_ms or known.get("front"):
            continue
        found = outputs.stat(name)
        if found is None or known.get("version") not in ("", found.version):
            if not sweep.is_dry:
                store.delete(stat.key)  # it is gone, or is not ours any more
            continue
        found = replace(found, modified_ms=max(found.modified_ms, free_since_ms[job]))
        sweep.take(stat.key, found, partial(remove, job, name))
        if sweep.is_dry or stat.key in sweep.waiting:
            left.add(job)
    if sweep.is_dry:
        return
    for job in free_since_ms.keys() - left - {*versions.former}:
        mark_collected(store, job, COLLECTED)
    gone = {*versions.former} - left
    change_versions(store, pipeline, lambda was: was.without(*gone))
