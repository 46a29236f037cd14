"""Jobs with real outputs, made by hand: what a worker would leave in ledger and store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from starlette.testclient import TestClient

from intermission.composition.fleet import Fleet
from intermission.composition.locations import location_of
from intermission.model import Completion, FileRef, Job, Receipt, Source, identity
from intermission.testing.jobs import job, step, submit

Connect = Callable[..., TestClient]
"""Starts a server with these options, and is a client of it."""


def job_over(
    path: Path, name: str = "one", *, priority: int = 0, pipeline: str = "pipeline"
) -> Job:
    """A job of one step that publishes its files, over a file of this machine."""
    path.write_bytes(b"source")
    made = job(step("pack", publish="{name}"), key=identity(name), pipeline=pipeline)
    source = Source(path.resolve().as_uri(), identity(str(path)), 6)
    return replace(made, source=source, priority=priority)


def finished(fleet: Fleet, made: Job, files: Mapping[str, bytes]) -> Job:
    """Submit a job and finish its task with these files."""
    submit(fleet.ledger, made)
    (lease,) = fleet.ledger.claim("w", 1, lease_ttl_s=60, jobs=[made.key])
    store = fleet.app.workspace(location_of(made.source)).open_store()
    refs: list[FileRef] = []
    for name, data in files.items():
        key = f"artifacts/pack/{lease.key}/{name}"
        store.create(key, data)
        refs.append(FileRef(name, key, len(data), hashlib.sha256(data).hexdigest()))
    receipt = Receipt(lease.key, "pack", 1, "a", lease.fence, "{}", tuple(refs))
    fleet.ledger.complete([Completion(lease.task_id, lease.fence, "{}", receipt)])
    return made
