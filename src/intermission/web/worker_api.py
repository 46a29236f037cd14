"""The worker API: registration, keys, heartbeats, and the calls about tasks.

Whoever has the admin secret registers workers and gets their keys, once each. A key opens what a
supervisor needs. Heartbeats feed the view of the fleet; they decide no lease.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import Enum
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Path
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from intermission import __version__
from intermission.composition.fleet import Fleet
from intermission.operations.remote_work import ARTIFACT_MAX_BYTES, RemoteWork
from intermission.operations.worker_keys import NewKey, Registry, WorkerKeys
from intermission.operations.worker_protocol import work_schema as wire
from intermission.web.auth import Keys, check_version
from intermission.web.problems import Problem, documented
from intermission.web.request_body import json_body, parse, read_body
from intermission.web.worker_tasks import add_tasks

API = "/api/v1"
REGISTRATION_MAX_BYTES = 256 * 1024
_TAGS: list[str | Enum] = ["workers"]
_PROBLEMS = documented(400, 401, 403, 413, 422, 426, 503)
_Id = Path(pattern=r"^[A-Za-z0-9._-]{1,128}$")


class KeyDocument(BaseModel):
    """A new key. It is shown here and never again."""

    id: str
    key: str
    expires_ms: int | None


class Welcome(BaseModel):
    """What a heartbeat is answered with."""

    id: str
    next_s: int
    version: str


def worker_router(
    fleet: Fleet, registry: Registry, *, object_max_bytes: int = ARTIFACT_MAX_BYTES
) -> APIRouter:
    """Everything a worker calls, and what makes one."""
    workers = WorkerKeys(registry, fleet.app.clock)
    keys = Keys(workers, fleet.settings.admin_secret)
    router = APIRouter()
    add_tasks(router, RemoteWork(fleet, artifact_max_bytes=object_max_bytes), keys)
    _add_registration(router, workers, keys)
    _add_keys(router, workers, keys)
    _add_heartbeats(router, workers, keys)
    return router


def _add_registration(router: APIRouter, workers: WorkerKeys, keys: Keys) -> None:
    @router.post(
        f"{API}/workers",
        tags=_TAGS,
        operation_id="registerWorker",
        status_code=201,
        response_model=KeyDocument,
        responses=_PROBLEMS,
        openapi_extra=json_body(wire.Registration),
    )
    async def register(request: Request) -> Response:
        """Register a worker. The answer has its key, which is shown only once."""

        def act(body: bytes) -> NewKey:
            asked = parse(wire.Registration, body)
            _check_size("can", asked.can)
            _check_size("metadata", asked.metadata)
            check_version(asked.version)
            return workers.register(
                asked.name,
                can=asked.can,
                metadata=asked.metadata,
                version=asked.version,
                expires_s=asked.expires_s,
            )

        keys.admin(request)
        body = await read_body(request, REGISTRATION_MAX_BYTES)
        return _created(await to_thread.run_sync(act, body))


def _add_keys(router: APIRouter, workers: WorkerKeys, keys: Keys) -> None:
    @router.post(
        f"{API}/workers/{{id}}/rotate",
        tags=_TAGS,
        operation_id="rotateWorkerKey",
        status_code=201,
        response_model=KeyDocument,
        responses=_PROBLEMS | documented(404),
        openapi_extra=json_body(wire.Rotation),
    )
    async def rotate(request: Request, id: str = _Id) -> Response:
        """Give a worker a new key. Those it has end after `keep_s`, at once by default."""

        def act(body: bytes) -> NewKey:
            asked = parse(wire.Rotation, body or b"{}")
            return workers.rotate(id, keep_s=asked.keep_s, expires_s=asked.expires_s)

        keys.admin(request)
        body = await read_body(request, REGISTRATION_MAX_BYTES)
        return _created(await to_thread.run_sync(act, body))

    @router.delete(
        f"{API}/workers/{{id}}",
        tags=_TAGS,
        operation_id="revokeWorker",
        status_code=204,
        responses=_PROBLEMS | documented(404),
    )
    def revoke(request: Request, id: str = _Id) -> Response:
        """Disable a worker, from its next call on. What it holds ends with its leases."""
        keys.admin(request)
        workers.revoke(id)
        return Response(status_code=204)


def _add_heartbeats(router: APIRouter, workers: WorkerKeys, keys: Keys) -> None:
    @router.post(
        f"{wire.API}/heartbeat",
        tags=_TAGS,
        operation_id="workerHeartbeat",
        response_model=Welcome,
        responses=_PROBLEMS,
        openapi_extra=json_body(wire.WorkerHeartbeat),
    )
    async def heartbeat(request: Request) -> Response:
        """A worker's sign of life, with how many of its slots are at work."""

        def act(body: bytes) -> Welcome:
            worker = keys.caller(request).worker
            if worker is None:
                raise Problem(
                    403,
                    "Not for the administrator",
                    "a heartbeat is a worker's.",
                    remedy="Send it with the worker's key.",
                )
            asked = parse(wire.WorkerHeartbeat, body)
            check_version(asked.version)
            how = {"slots": asked.slots, "busy": asked.busy}
            workers.seen(worker.id, **how, version=asked.version)
            return Welcome(id=worker.id, next_s=wire.HEARTBEAT_EVERY_S, version=__version__)

        body = await read_body(request, REGISTRATION_MAX_BYTES)
        answer = await to_thread.run_sync(act, body)
        return JSONResponse(answer.model_dump())


def _created(key: NewKey) -> Response:
    return JSONResponse(asdict(key), 201, headers={"Cache-Control": "no-store"})


def _check_size(name: str, value: Any) -> None:
    found = len(json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass"))
    if found > wire.METADATA_MAX_BYTES:
        raise Problem(
            413,
            f"Too much {name}",
            f"{name} has {found} bytes of JSON; the limit is {wire.METADATA_MAX_BYTES}.",
            remedy=f"Send at most {wire.METADATA_MAX_BYTES} bytes of JSON.",
        )
