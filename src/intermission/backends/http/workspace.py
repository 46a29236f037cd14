"""A job's workspace behind a server, for the commands of an operator: its files over HTTP."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from intermission.backends.http.ledger import HttpLedger
from intermission.backends.http.store import HttpStore
from intermission.engine.workspace import Workspace
from intermission.model import Job, identity


def http_workspace(job: Job, url: str, key: str, cache: Path, *, has_outputs: bool) -> Workspace:
    """The workspace of a job as the server's ledger has it.

    `cache` is a folder of this machine; equal jobs of one server share their part of it.
    """
    return Workspace(
        folder=cache / "workspaces" / identity(url, job.key)[:20] / job.source.name,
        open_store=partial(HttpStore, url, key, job.key, "store"),
        open_outputs=partial(HttpStore, url, key, job.key, "outputs") if has_outputs else None,
        open_ledger=partial(HttpLedger, url, key),
    )
