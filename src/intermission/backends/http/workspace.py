"""A job's workspace behind a server: its files over HTTP, a folder of this machine for the rest."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from intermission.backends.http import rpc_schema
from intermission.backends.http.client import STORE, server
from intermission.backends.http.ledger import HttpLedger
from intermission.backends.http.store import HttpStore
from intermission.engine.source import hash_files
from intermission.engine.workspace import Workspace
from intermission.errors import EnvironmentFault, SourceChanged, fault_from_os
from intermission.model import Job, Source, identity

if TYPE_CHECKING:
    import httpx

_BLOCK_BYTES = 1024**2


def job_from_here(job: Job, url: str) -> Job:
    """The job as a worker behind a server runs it: its source is where the server has it."""
    return replace(job, source=replace(job.source, uri=_source_url(job, url)))


def http_workspace(job: Job, url: str, key: str, cache: Path, *, has_outputs: bool) -> Workspace:
    """The workspace of a job as the server's ledger has it.

    `cache` is a folder of this machine; equal jobs of one server share their part of it.
    """
    folder = cache / "workspaces" / identity(url, job.key)[:20] / job.source.name
    return Workspace(
        folder=folder,
        open_store=partial(HttpStore, url, key, job.key, "store"),
        open_outputs=partial(HttpStore, url, key, job.key, "outputs") if has_outputs else None,
        open_ledger=partial(HttpLedger, url, key),
        fetch_source=partial(
            _fetch_source,
            url,
            key,
            folder / "source" / job.source.fingerprint / job.source.name,
            job.source.uri.startswith("file:"),
        ),
    )


def _source_url(job: Job, url: str) -> str:
    name = quote(job.source.name, safe="")
    return f"{url.rstrip('/')}{rpc_schema.API}/jobs/{quote(job.key, safe='')}/source/{name}"


def _fetch_source(url: str, key: str, path: Path, is_hashed: bool, source: Source) -> Path:
    """The source as a file of this machine, downloaded once however many slots want it.

    With `is_hashed` its fingerprint is the hash of its content, and is checked.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                part = path.with_name(f".{source.fingerprint[:20]}.part")
                _download(url, key, part, source)
                _check(part, is_hashed, source)
                part.replace(path)
        finally:
            os.close(lock)
    except OSError as e:
        raise fault_from_os(e, "fetching the source", EnvironmentFault, where=path.parent) from e
    return path


def _download(url: str, key: str, part: Path, source: Source) -> None:
    """What is missing of the file: a download that was cut goes on where it stopped."""

    def headers() -> dict[str, str]:
        have_bytes = part.stat().st_size if part.exists() else 0
        if not 0 < have_bytes < source.size_bytes:
            return {}
        etag = f'"{quote(source.fingerprint, safe=":")}"'
        return {"Range": f"bytes={have_bytes}-", "If-Range": etag}

    def receive(response: httpx.Response) -> None:
        with part.open("ab" if response.status_code == 206 else "wb") as file:
            for block in response.iter_bytes(_BLOCK_BYTES):
                file.write(block)

    path = source.uri.removeprefix(url.rstrip("/"))
    server(url, key).call(
        "fetching the source", "GET", path, receive, faults=STORE, headers=headers
    )


def _check(part: Path, is_hashed: bool, source: Source) -> None:
    found_bytes = part.stat().st_size
    if found_bytes == source.size_bytes and not (
        is_hashed and hash_files(part) != source.fingerprint
    ):
        return
    part.unlink()
    raise SourceChanged(
        f"expected {source.size_bytes} bytes with the content that {source.name} had when its job "
        f"was planned, found {found_bytes} bytes of another.",
        remedy="Submit it again: the new content is a new job.",
    )
