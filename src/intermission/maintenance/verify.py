"""Looking again at what is finished: are the bytes still the ones the receipts name?

Run at every start. A file that was not touched since its task was recorded, or since the
last such look, costs one stat; any other is hashed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from intermission.engine import completion
from intermission.engine.receipt import fetch_file
from intermission.errors import CorruptArtifact, NotFound
from intermission.model import FileRef, Job
from intermission.ports.clock import Clock
from intermission.ports.ledger import Ledger
from intermission.ports.store import Stat, Store


def verify(
    ledger: Ledger, store: Store, job: Job, scratch: Path, clock: Clock, *, thorough: bool = False
) -> int:
    """Send every done task with a lost or altered file back to work. How many tasks changed."""
    started_ms = clock.now_ms()
    looked_ms = 0 if thorough else _last_look(store, job)
    lost: dict[str, list[str]] = {}
    suspicious = False
    stat_of = _looker(store)
    for row, output in ledger.receipts(job.key):
        trusted_ms = 0 if thorough else max(row.ended_ms or 0, looked_ms)
        for file in output.files:
            stat = stat_of(file.key)
            if stat is not None and stat.modified_ms <= trusted_ms:
                continue
            suspicious = True
            if not _sound(store, file, scratch):
                lost.setdefault(output.task_key, []).append(file.key)
    if lost:
        return completion.invalidate(ledger, store, job, lost, "its artifact is missing or altered")
    if suspicious:
        store.replace(f"looks/{job.key}.json", json.dumps({"at_ms": started_ms}).encode())
    return 0


def _looker(store: Store) -> Callable[[str], Stat | None]:
    """How to look at one artifact after the other. A list is one request for a thousand."""
    if store.local_path("artifacts") is not None:
        return store.stat
    return {stat.key: stat for stat in store.list("artifacts/")}.get


def _last_look(store: Store, job: Job) -> int:
    try:
        return int(json.loads(store.read(f"looks/{job.key}.json"))["at_ms"])
    except (NotFound, ValueError, KeyError, TypeError):
        return 0


def _sound(store: Store, file: FileRef, scratch: Path) -> bool:
    try:
        fetch_file(store, file, scratch)
    except CorruptArtifact:
        return False
    return True
