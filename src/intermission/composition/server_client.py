"""A server as its clients use it: people's commands, and workers that reach no database."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from intermission.backends.http.api_client import ApiClient, segment
from intermission.backends.http.claimed_job import HttpJob, open_http_job
from intermission.backends.http.registration import beating
from intermission.backends.http.work_client import WorkClient
from intermission.backends.source_files import hash_files
from intermission.composition.locations import Location, ObjectLocation, scratch_of
from intermission.errors import AlreadyExists, EnvironmentFault, NotFound, fault_from_os
from intermission.pipeline.catalog import Catalog
from intermission.settings import Settings


def api_client(settings: Settings) -> ApiClient:
    """The JSON API of the server, asked with the admin secret, else with a worker's key."""
    assert settings.server is not None
    secret = settings.admin_secret or settings.server_key
    return ApiClient(settings.server, "" if secret is None else secret.get_secret_value())


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
    client: ApiClient,
    pipeline: str,
    place: Location,
    params: Mapping[str, Any],
    *,
    priority: int = 0,
    not_before_ms: int = 0,
) -> tuple[str, bool]:
    """The key of the job, and whether it is new. A file of this machine is uploaded first."""
    source = str(place) if isinstance(place, ObjectLocation) else _upload(client, place)
    body = {
        "pipeline": pipeline,
        "source": source,
        "params": dict(params),
        "priority": priority,
        "not_before_ms": not_before_ms,
    }
    once = {"Idempotency-Key": os.urandom(16).hex()}
    status, job = client.ask_status(f"submitting {place.name}", "POST", "/jobs", body, headers=once)
    return job["job"], status == 202


def has_job(client: ApiClient, key: str) -> bool:
    """Whether the server knows the job with this key."""
    try:
        client.ask("looking for a job", "GET", f"/jobs/{key}")
    except NotFound:
        return False
    return True


def _upload(client: ApiClient, path: Path) -> str:
    """The id of an upload with a file's bytes: under its name, or one that says which bytes."""

    def send(name: str) -> str:
        sent = client.send_file(f"uploading {path.name}", f"/sources/{segment(name)}", path)
        return sent["id"]

    with suppress(AlreadyExists):
        return send(path.name)
    try:
        return send(f"{path.stem}-{hash_files(path)[:8]}{path.suffix}")
    except OSError as e:
        raise fault_from_os(e, f"uploading {path.name}", EnvironmentFault, where=path) from e
    except AlreadyExists:
        raise AlreadyExists(
            f"the server has other files called {path.name}.", remedy="Give the file another name."
        ) from None
