"""A server as its clients use it: workers that reach no database, and people's commands.

The ledger and the stores are those of the server, behind the same ports; so a worker is the same
worker, and a command the same command.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from intermission import __version__
from intermission.app.places import ObjectPlace, Place
from intermission.backends.http import wire
from intermission.backends.http.client import LEDGER, STORE, server
from intermission.backends.http.ledger import HttpLedger
from intermission.backends.http.store import HttpStore
from intermission.engine.source import hash_files
from intermission.engine.workspace import Workspace
from intermission.errors import (
    AlreadyExists,
    EnvironmentFault,
    IntermissionError,
    SourceError,
    fault_from_os,
)
from intermission.model import Job, Source
from intermission.settings import Settings

PUBLIC = "/api/v1"
_BLOCK_BYTES = 1024**2
log = logging.getLogger(__name__)


def credentials(settings: Settings) -> tuple[str, str]:
    """The server's URL, and what it is asked with: this worker's key, else the admin secret."""
    assert settings.server is not None
    secret = settings.server_key or settings.admin_secret
    return settings.server, "" if secret is None else secret.get_secret_value()


def remote_ledger(settings: Settings) -> Callable[[], HttpLedger]:
    return partial(HttpLedger, *credentials(settings))


def remote_workspace(settings: Settings, job: Job) -> Workspace:
    """A job's workspace behind the server; here is only a folder for working files."""
    url, key = credentials(settings)
    folder = settings.cache_dir.expanduser() / "workspaces" / job.key
    return Workspace(
        folder=folder,
        open_store=partial(HttpStore, url, key, job.key, "store"),
        open_outputs=partial(HttpStore, url, key, job.key, "outputs"),
        open_ledger=remote_ledger(settings),
        fetch_source=partial(_fetch_source, url, key, job.key, folder / "source"),
    )


def _fetch_source(url: str, key: str, job_key: str, folder: Path, source: Source) -> Path:
    """The source as a file of this machine, downloaded once however many slots want it."""
    path = folder / source.fingerprint / source.name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                server(url, key).call(
                    f"fetching {source.name}",
                    "GET",
                    f"{wire.API}/jobs/{job_key}/source/{quote(source.name, safe='')}",
                    lambda response: _receive(response, path, source),
                    faults=STORE,
                )
        finally:
            os.close(lock)
    except OSError as e:
        raise fault_from_os(e, f"fetching {source.name}", EnvironmentFault, where=folder) from e
    return path


def _receive(response: Any, path: Path, source: Source) -> None:
    part = path.with_name(f".{os.urandom(8).hex()}.part")
    try:
        with part.open("xb") as file:
            for block in response.iter_bytes(_BLOCK_BYTES):
                file.write(block)
        found_bytes = part.stat().st_size
        if found_bytes != source.size_bytes:
            raise SourceError(
                f"expected {source.size_bytes} bytes of {source.name}, found {found_bytes}.",
                remedy="The source changed since the job was made: submit it anew.",
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def heartbeats(settings: Settings, busy: Callable[[], int]) -> Iterator[None]:
    """Tell the server every now and then that this worker lives. Nothing depends on it."""
    ended = threading.Event()

    def beat() -> None:
        while True:
            asked = wire.Heartbeat(version=__version__, slots=settings.slots, busy=busy())
            try:
                server(*credentials(settings)).call(
                    "a heartbeat",
                    "POST",
                    f"{wire.API}/heartbeat",
                    lambda response: response.read(),
                    faults=LEDGER,
                    body=asked.model_dump_json().encode(),
                    headers={"Content-Type": "application/json"},
                    patience_s=1.0,
                )
            except IntermissionError as e:
                log.info("%s", e)
            if ended.wait(wire.HEARTBEAT_EVERY_S):
                return

    thread = threading.Thread(target=beat, name="heartbeats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def register(settings: Settings, name: str, *, expires_s: float | None = None) -> tuple[str, str]:
    """Make a worker known to the server: its id, and its key, which is never shown again."""
    asked = wire.Registration(name=name, version=__version__, can=settings.can, expires_s=expires_s)
    answer = _asked(settings, "registering a worker", "POST", f"{PUBLIC}/workers", asked)
    return answer["id"], answer["key"]


def submit_remotely(
    settings: Settings,
    pipeline: str,
    place: Place,
    params: Mapping[str, Any],
    *,
    priority: int = 0,
    not_before_ms: int = 0,
) -> tuple[str, bool]:
    """The key of the job, and whether it is new. A file of this machine is uploaded first."""
    source = str(place) if isinstance(place, ObjectPlace) else _upload(settings, place)
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


def _upload(settings: Settings, path: Path) -> str:
    """The id of an upload with a file's bytes: under its name, or one that says which bytes."""
    try:
        digest = hash_files(path)
        for name in (path.name, f"{path.stem}-{digest[:8]}{path.suffix}"):
            try:
                return server(*credentials(settings)).call(
                    f"uploading {path.name}",
                    "PUT",
                    f"{PUBLIC}/sources/{quote(name, safe='')}",
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


def _asked(settings: Settings, doing: str, verb: str, path: str, body: wire.Call) -> Any:
    return server(*credentials(settings)).call(
        doing,
        verb,
        path,
        lambda response: json.loads(response.read()),
        faults=LEDGER,
        body=body.model_dump_json().encode(),
        headers={"Content-Type": "application/json"},
    )
