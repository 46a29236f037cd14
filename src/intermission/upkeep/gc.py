"""Upkeep of a workspace: what attempts left behind that no receipt names, and old outputs.

An artifact is written before the receipt that names it, so a file without a receipt may
belong to a commit that is under way. It is removed only when it was already unnamed in an
earlier pass, at least a grace ago, and has not been touched since; the grace must be longer
than a lease. A workspace in which a worker is alive is left alone: a task may run longer than
any grace, and what it wrote first is not named before it ends.

Outputs of a job that another has taken the place of are removed in the same way: whoever plays
them has the grace to come to an end. A file that somebody else has written since stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, cast

from intermission.engine.publish import (
    VERSIONS,
    Versions,
    change_versions,
    memory_key,
    memory_of,
    read_versions,
)
from intermission.errors import NotFound
from intermission.model import Receipt
from intermission.ports.clock import Clock
from intermission.ports.store import Stat, Store

_MEMORY_KEY = "garbage.json"


@dataclass(frozen=True)
class Swept:
    """What a pass did: files and bytes removed, and files that the next pass may remove."""

    removed: int
    removed_bytes: int
    waiting: int
    in_use: bool = False
    """A worker is alive there, so nothing was looked at."""


def collect(
    store: Store,
    clock: Clock,
    *,
    grace_s: float,
    dry_run: bool = False,
    outputs_of: Callable[[str], Store | None] = lambda _: None,
) -> Swept:
    """One pass. Two passes, a grace apart, remove a file.

    `outputs_of` opens the outputs of the job with a key, where it can.
    """
    sweep = _Sweep(store, clock.now_ms(), int(grace_s * 1000), dry_run)
    # Artifacts are listed before receipts are read: a receipt created in between still counts.
    candidates = {stat.key: stat for stat in store.list("artifacts/")}
    for key in _named(store):
        candidates.pop(key, None)
    for key, stat in candidates.items():
        sweep.take(key, stat, lambda key=key: store.delete(key))
    for pipeline, versions in _superseded(store):
        outputs = outputs_of(versions.front or "")
        if outputs is not None:
            _take_outputs(sweep, outputs, pipeline, versions)
    if not dry_run:
        store.replace(_MEMORY_KEY, json.dumps(sweep.waiting).encode())
    return Swept(sweep.removed, sweep.removed_bytes, len(sweep.waiting))


class _Sweep:
    """One pass over what may go."""

    def __init__(self, store: Store, now_ms: int, grace_ms: int, dry_run: bool) -> None:
        self.store = store
        self.waiting: dict[str, int] = {}
        self.removed = 0
        self.removed_bytes = 0
        self.is_dry = dry_run
        self._seen = _seen_before(store)
        self._now_ms = now_ms
        self._oldest_ms = now_ms - grace_ms

    def take(self, key: str, stat: Stat, remove: Callable[[], None]) -> None:
        """Remove an object if it was seen here a grace ago and is as old; else see it now."""
        first_ms = self._seen.get(key, self._now_ms)
        if key not in self._seen or max(first_ms, stat.modified_ms) > self._oldest_ms:
            self.waiting[key] = first_ms
            return
        self.removed += 1
        self.removed_bytes += stat.size_bytes
        if not self.is_dry:
            remove()


def _named(store: Store) -> set[str]:
    named: set[str] = set()
    for stat in store.list("receipts/"):
        try:
            named.update(file.key for file in Receipt.from_json(store.read(stat.key)).files)
        except (ValueError, TypeError, KeyError, NotFound):
            continue  # a task will find it unsound and put it into quarantine
    return named


def _superseded(store: Store) -> Iterator[tuple[str, Versions]]:
    """The pipelines that have outputs of jobs which others took the place of."""
    for stat in store.list(f"{VERSIONS}/"):
        pipeline = PurePosixPath(stat.key).stem
        versions = read_versions(store, pipeline)
        if versions is not None and versions.former:
            yield pipeline, versions


def _take_outputs(sweep: _Sweep, outputs: Store, pipeline: str, versions: Versions) -> None:
    store = sweep.store
    left: set[str] = set()
    for stat in list(store.list("published/")):
        name = stat.key.removeprefix("published/").removesuffix(".json")
        known = memory_of(store, name)
        if known.get("job") not in versions.former or known.get("front"):
            continue
        found = outputs.stat(name)
        if found is None or known.get("version") not in ("", found.version):
            if not sweep.is_dry:
                store.delete(stat.key)  # it is gone, or is not ours any more
            continue
        sweep.take(stat.key, found, lambda name=name: _remove_output(store, outputs, name))
        if sweep.is_dry or stat.key in sweep.waiting:
            left.add(cast("str", known["job"]))
    if not sweep.is_dry:
        gone = set(versions.former) - left
        change_versions(store, pipeline, lambda was: _forgotten(was, gone))


def _remove_output(store: Store, outputs: Store, name: str) -> None:
    outputs.delete(name)
    store.delete(memory_key(name))


def _forgotten(was: Versions, gone: set[str]) -> Versions:
    return replace(was, former=tuple(key for key in was.former if key not in gone))


def _seen_before(store: Store) -> dict[str, int]:
    try:
        seen: Any = json.loads(store.read(_MEMORY_KEY))
    except (NotFound, ValueError):
        seen = None
    return cast("dict[str, int]", seen) if isinstance(seen, dict) else {}
