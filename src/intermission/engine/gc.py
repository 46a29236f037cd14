"""Garbage collection: what attempts left behind that no receipt names.

An artifact is written before the receipt that names it, so a file without a receipt may
belong to a commit that is under way. It is removed only when it was already unnamed in an
earlier pass, at least a grace ago, and has not been touched since; the grace must be longer
than a lease. A workspace in which a worker is alive is left alone: a task may run longer than
any grace, and what it wrote first is not named before it ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import cast

from intermission.errors import NotFound
from intermission.model import Receipt
from intermission.ports.clock import Clock
from intermission.ports.store import Store

_MEMORY_KEY = "garbage.json"


@dataclass(frozen=True)
class Swept:
    """What a pass did: files and bytes removed, and files that the next pass may remove."""

    removed: int
    removed_bytes: int
    waiting: int
    in_use: bool = False
    """A worker is alive there, so nothing was looked at."""


def collect(store: Store, clock: Clock, *, grace_s: float, dry_run: bool = False) -> Swept:
    """One pass. Two passes, a grace apart, remove a file."""
    now_ms = clock.now_ms()
    grace_ms = int(grace_s * 1000)
    seen = _seen_before(store)
    # Artifacts are listed before receipts are read: a receipt created in between still counts.
    candidates = {stat.key: stat for stat in store.list("artifacts/")}
    for key in _named(store):
        candidates.pop(key, None)
    waiting: dict[str, int] = {}
    removed = removed_bytes = 0
    for key, stat in candidates.items():
        first_ms = seen.get(key, now_ms)
        old = key in seen and first_ms <= now_ms - grace_ms
        if old and stat.modified_ms <= now_ms - grace_ms:
            removed += 1
            removed_bytes += stat.size_bytes
            if not dry_run:
                store.delete(key)
        else:
            waiting[key] = first_ms
    if not dry_run:
        store.replace(_MEMORY_KEY, json.dumps(waiting).encode())
    return Swept(removed, removed_bytes, len(waiting))


def _named(store: Store) -> set[str]:
    named: set[str] = set()
    for stat in store.list("receipts/"):
        try:
            named.update(file.key for file in Receipt.from_json(store.read(stat.key)).files)
        except (ValueError, TypeError, KeyError, NotFound):
            continue  # a task will find it unsound and put it into quarantine
    return named


def _seen_before(store: Store) -> dict[str, int]:
    try:
        seen = json.loads(store.read(_MEMORY_KEY))
    except (NotFound, ValueError):
        seen = None
    return cast("dict[str, int]", seen) if isinstance(seen, dict) else {}
