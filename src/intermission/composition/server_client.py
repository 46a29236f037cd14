"""A server as its clients use it: workers that reach no database, and people's commands.

The ledger and the stores are those of the server, behind the same ports; so a worker is the same
worker, and a command the same command.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from intermission.backends.http.claimed_job import HttpJob, open_http_job
from intermission.backends.http.client import LEDGER, STORE, server
from intermission.backends.http.ledger import HttpLedger
from intermission.backends.http.registration import beating
from intermission.backends.http.work_client import WorkClient
from intermission.backends.http.workspace import http_workspace
from intermission.backends.source_files import hash_files
from intermission.composition.locations import Location, ObjectLocation, scratch_of
from intermission.engine.workspace import Workspace
from intermission.errors import AlreadyExists, EnvironmentFault, UsageError, fault_from_os
from intermission.model import Job
from intermission.pipeline.catalog import Catalog
from intermission.settings import Settings

PUBLIC = "/api/v1"
_BLOCK_BYTES = 1024**2


def credentials(settings: Settings) -> tuple[str, str]:
    """The server's URL, and what it is asked with: the admin secret, else a worker's key."""
    assert settings.server is not None
    secret = settings.admin_secret or settings.server_key
    return settings.server, "" if secret is None else secret.get_secret_value()


def remote_ledger(settings: Settings) -> Callable[[], HttpLedger]:
    return partial(HttpLedger, *credentials(settings))


def remote_workspace(settings: Settings, job: Job, *, has_outputs: bool) -> Workspace:
    """A job's workspace behind the server; here is only a folder for working files."""
    cache = settings.cache_dir.expanduser().resolve()
    return http_workspace(job, *credentials(settings), cache, has_outputs=has_outputs)


def _worker_credentials(settings: Settings) -> tuple[str, str]:
    """The server's URL, and a worker's key; the admin secret where there is none."""
    assert settings.server is not None
    secret = settings.server_key or settings.admin_secret
    return settings.server, "" if secret is None else secret.get_secret_value()


def remote_work(
    settings: Settings, catalog: Catalog, worker: str
) -> tuple[WorkClient, Callable[[str], HttpJob]]:
    """Where a worker gets its work, and how it opens the jobs of it."""
    client = WorkClient(*_worker_credentials(settings))
    return client, partial(open_http_job, client, catalog, worker, settings, scratch_of(settings))


def heartbeats(
    settings: Settings, load: Callable[[], tuple[int, int]]
) -> AbstractContextManager[None]:
    """Show the server that this worker lives. `load`: how many slots it has, how many are busy."""
    return beating(*_worker_credentials(settings), load)


def submit_remotely(
    settings: Settings,
    pipeline: str,
    place: Location,
    params: Mapping[str, Any],
    *,
    priority: int = 0,
    not_before_ms: int = 0,
) -> tuple[str, bool]:
    """The key of the job, and whether it is new. A file of this machine is uploaded first."""
    source = str(place) if isinstance(place, ObjectLocation) else _upload(settings, place)
    body = {
        "pipeline": pipeline,
        "source": source,
        "params": dict(params),
        "priority": priority,
        "not_before_ms": not_before_ms,
    }
    url, key = credentials(settings)
    return server(url, key).call(
        f"submitting {place.name}",
        "POST",
        f"{PUBLIC}/jobs",
        lambda response: (json.loads(response.read())["job"], response.status_code == 202),
        faults=LEDGER,
        body=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": os.urandom(16).hex()},
    )


def ask(
    settings: Settings, doing: str, verb: str, path: str, body: Mapping[str, Any] | None = None
) -> Any:
    """What the public API answers to the administrator, once: a person waits for it."""
    assert settings.server is not None
    secret = settings.admin_secret
    return server(settings.server, "" if secret is None else secret.get_secret_value()).call(
        doing,
        verb,
        PUBLIC + path,
        lambda response: json.loads(response.read() or b"null"),
        faults=LEDGER,
        body=b"" if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        patience_s=0,
    )


def finish_remotely(
    settings: Settings, token: str, result: str, failed: str | None, files: Mapping[str, Path]
) -> Any:
    """Send the outcome of a deferred task, its files first. What the server answers."""
    sent: list[dict[str, Any]] = []
    for name, path in files.items():
        try:
            sent.append(_send_deferred_file(settings, token, name, path))
        except OSError as e:
            raise fault_from_os(e, f"sending {name}", EnvironmentFault, where=path) from e
    body: dict[str, Any] = {"files": sent}
    if failed is not None:
        body = {"failed": failed}
    elif result:
        try:
            body["result"] = json.loads(result)
        except ValueError as e:
            raise UsageError(
                f"expected a result as JSON, found {result[:200]!r}.",
                remedy="Quote a text as JSON does.",
            ) from e
    return ask(settings, "finishing the task", "POST", f"/deferred/{segment(token)}", body)


def _send_deferred_file(settings: Settings, token: str, name: str, path: Path) -> Any:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return server(*credentials(settings)).call(
        f"sending {name}",
        "PUT",
        f"{PUBLIC}/uploads/deferred?{urlencode({'token': token, 'name': name})}",
        lambda response: json.loads(response.read()),
        faults=STORE,
        body=lambda: _blocks(path),
        headers={
            "Content-Type": "application/octet-stream",
            "Content-Length": str(path.stat().st_size),
            "X-Content-SHA256": sha256,
        },
    )


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _upload(settings: Settings, path: Path) -> str:
    """The id of an upload with a file's bytes: under its name, or one that says which bytes."""
    try:
        digest = hash_files(path)
        for name in (path.name, f"{path.stem}-{digest[:8]}{path.suffix}"):
            try:
                return server(*credentials(settings)).call(
                    f"uploading {path.name}",
                    "PUT",
                    f"{PUBLIC}/sources/{segment(name)}",
                    lambda response: json.loads(response.read())["id"],
                    faults=STORE,
                    body=lambda: _blocks(path),
                    headers={"Content-Type": "application/octet-stream"},
                )
            except AlreadyExists:
                continue
    except OSError as e:
        raise fault_from_os(e, f"uploading {path.name}", EnvironmentFault, where=path) from e
    raise AlreadyExists(
        f"the server has other files called {path.name}.", remedy="Give the file another name."
    )


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block
