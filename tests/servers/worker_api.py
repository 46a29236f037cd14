"""A real server on loopback with the worker API alone, over a SQLite ledger and local stores."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr

from intermission import __version__
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.registry.sqlite import SqliteRegistry
from intermission.backends.store.local import LocalStore
from intermission.composition.fleet import Fleet
from intermission.engine.workspace import Workspace
from intermission.model import Job
from intermission.pipeline import Pipeline
from intermission.ports.clock import Clock, SystemClock
from intermission.ports.ledger import Ledger
from intermission.ports.registry import Registry
from intermission.settings import Settings
from intermission.testing.clock import FakeClock
from intermission.web.problems import install
from intermission.web.worker_api import worker_router

ADMIN = "the administrator's secret"
DEADLINE_S = 20.0


class Bench:
    """A fleet in a folder, whose ledger a test may exchange for a new one."""

    def __init__(self, folder: Path, secret: str | None = ADMIN) -> None:
        self.settings = Settings(admin_secret=None if secret is None else SecretStr(secret))
        self.clock = FakeClock()
        self.app = SimpleNamespace(clock=self.clock)
        self.pipelines: dict[str, Pipeline] = {}
        """The code that the server has, by name."""
        self._threads = threading.local()
        self.use(folder, SystemClock())

    def use(self, folder: Path, clock: Clock) -> None:
        """From here on, jobs and their files are in this folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._ledger_clock = folder, clock

    def open_ledger(self) -> Ledger:
        return SqliteLedger(self.folder / "ledger.sqlite", clock=self._ledger_clock)

    @property
    def ledger(self) -> Ledger:
        known: tuple[Path, Ledger] | None = getattr(self._threads, "known", None)
        if known is None or known[0] != self.folder:
            if known is not None:
                known[1].close()
            known = self._threads.known = self.folder, self.open_ledger()
        return known[1]

    def pipeline(self, job: Job) -> Pipeline | None:
        return self.pipelines.get(job.pipeline)

    def notify(self, priority: int = 0) -> None:
        """Nobody waits."""

    def workspace(self, job: Job) -> Workspace:
        folder = self.folder / "jobs" / job.key
        return Workspace(
            folder=folder,
            open_store=partial(LocalStore, folder),
            open_outputs=partial(LocalStore, folder.with_name(f"{job.key}-outputs")),
            open_ledger=self.open_ledger,
        )


@contextmanager
def serving(bench: Bench, registry: Registry, **options: Any) -> Iterator[str]:
    """Serve in a thread of this process; the URL."""
    app = FastAPI()
    install(app)
    app.include_router(worker_router(cast(Fleet, bench), registry, **options))
    with listening(app, lifespan="off") as url:
        yield url


@contextmanager
def listening(app: FastAPI, **options: Any) -> Iterator[str]:
    """An application that answers from a thread of this process; its URL."""
    # By its protocol asyncio knows a connection on which small answers must not wait.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(app, log_config=None, ws="none", access_log=False, **options)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        until_s = time.monotonic() + DEADLINE_S
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < until_s, "the server did not start in time"
            thread.join(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "the server did not end"


@dataclass(frozen=True)
class Hands:
    """A worker that makes every call by itself."""

    client: httpx.Client
    url: str
    key: str

    def ask(self, call: str, **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key}"}
        url = f"{self.url}/api/v1/worker/{call}"
        return self.client.post(url, json=body, headers=headers)

    def said(self, call: str, **body: Any) -> Any:
        answer = self.ask(call, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def claim(self, room: int = 1, **more: Any) -> list[dict[str, Any]]:
        return self.said("claim", process="hands", room=room, **more)["leases"]

    def get(self, token: str, path: str, **headers: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key}", "Intermission-Lease": token, **headers}
        return self.client.get(self.url + path, headers=headers)

    def put(self, token: str, name: str, body: bytes, sha256: str | None = None) -> httpx.Response:
        headers = {
            "Authorization": f"Bearer {self.key}",
            "Intermission-Lease": token,
            "X-Content-SHA256": sha256 or hashlib.sha256(body).hexdigest(),
        }
        url = f"{self.url}/api/v1/worker/artifacts/{name}"
        return self.client.put(url, content=body, headers=headers)

    def add(self, token: str, name: str, body: bytes) -> dict[str, Any]:
        answer = self.put(token, name, body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def complete(self, token: str, result: Any, *files: dict[str, Any]) -> dict[str, Any]:
        text = result if isinstance(result, str) else json.dumps(result)
        done = [{"lease": token, "result": text, "files": files}]
        return self.said("complete", done=done)["ends"][0]


@dataclass(frozen=True)
class Served:
    """A server, and hands to use it with."""

    url: str
    bench: Bench
    registry: SqliteRegistry
    client: httpx.Client

    def call(
        self, method: str, path: str, key: str | None = None, body: Any = None, **options: Any
    ) -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        headers |= options.pop("headers", {})
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return self.client.request(
            method, self.url + path, content=content, headers=headers, **options
        )

    def register(self, **fields: Any) -> tuple[str, str]:
        asked = {"name": "box", "version": __version__} | fields
        answer = self.call("POST", "/api/v1/workers", ADMIN, asked)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"], answer.json()["key"]

    def hands(self, key: str | None = None, url: str | None = None) -> Hands:
        return Hands(self.client, url or self.url, key or self.register()[1])


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem that an answer is; it has a reason and a remedy."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = answer.json()
    assert found["status"] == status
    assert found["detail"]
    assert found["remedy"] or status == 404
    return found


@contextmanager
def served_in(folder: Path, **options: Any) -> Iterator[Served]:
    """A server with everything it keeps in a folder."""
    bench, registry = Bench(folder / "fleet"), SqliteRegistry(folder / "registry.sqlite")
    try:
        with serving(bench, registry, **options) as url, httpx.Client(timeout=30) as client:
            yield Served(url, bench, registry, client)
    finally:
        registry.close()
