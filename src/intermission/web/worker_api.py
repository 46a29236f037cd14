"""The worker API: workers and their keys, and the calls by which they get tasks and end them.

Whoever has the admin secret registers workers and gets their keys, once each. Every other call is
authorised by a worker's key, and those about one task by its lease token too. This file reads
requests and writes answers; what a call means is `operations.remote_work`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from enum import Enum
from typing import Annotated, Any
from urllib.parse import quote

from anyio import to_thread
from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from intermission import __version__
from intermission.composition.fleet import Fleet
from intermission.operations import remote_files
from intermission.operations.held_tasks import HeldTask, Worker
from intermission.operations.remote_work import ARTIFACT_MAX_BYTES, RemoteWork
from intermission.operations.task_ends import check_artifact_name
from intermission.operations.worker_keys import NewKey, Registry, WorkerKeys
from intermission.operations.worker_protocol import work_schema as wire
from intermission.web.auth import Keys, check_version
from intermission.web.problems import Problem, documented
from intermission.web.request_body import Repeats, declared_bytes, json_body, parse, read_body
from intermission.web.transfer import SHA256_HEADER, received, sent

API = "/api/v1"
REGISTRATION_MAX_BYTES = 256 * 1024
SMALL_BYTES = 64 * 1024
"""A body up to this size is read before anybody asks whose it is."""
AT_ONCE = 8
"""Calls at a time that wait for the ledger or the disk."""
_ADMIN_TAGS: list[str | Enum] = ["workers"]
_TAGS: list[str | Enum] = ["worker"]
_CALLS: tuple[tuple[str, type[wire.Call], type[wire.Answer], str], ...] = (
    # The busiest first: a router looks at one after the other.
    (wire.CLAIM, wire.Claim, wire.Claimed, "Take tasks: leases, each with its token."),
    (wire.RENEW, wire.Renew, wire.Renewed, "Keep leases, and say how far their tasks are."),
    (wire.COMPLETE, wire.Complete, wire.Completed, "End tasks well: the server writes receipts."),
    (wire.FAIL, wire.Fail, wire.Failed, "End attempts that failed."),
    (wire.RELEASE, wire.Release, wire.Released, "Give leases back; the attempts do not count."),
    (wire.CANCELLED, wire.Cancelled, wire.CancelledJobs, "Which jobs of leases are cancelled."),
    (wire.UPLOAD, wire.Upload, wire.UploadAt, "Where the store itself takes an artifact."),
    (wire.DEFER, wire.Defer, wire.Deferred, "Leave a task to be finished by an outside event."),
    (wire.HEARTBEAT, wire.WorkerHeartbeat, wire.Welcome, "A worker's sign of life, for people."),
)
_CALL_PROBLEMS = documented(400, 401, 403, 413, 422, 426, 503)
_FILE_PROBLEMS = documented(401, 403, 404, 409, 410, 416, 422, 426, 503)
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The bytes", "content": _BINARY},
    206: {"description": "A range of them", "content": _BINARY},
    307: {"description": "Where the store itself gives them; only if that was asked for"},
}
_LEASE: dict[str, Any] = {
    "parameters": [
        {
            "name": wire.LEASE_HEADER,
            "in": "header",
            "required": True,
            "description": "The token of the lease.",
            "schema": {"type": "string", "minLength": 1, "maxLength": wire.TOKEN_MAX},
        }
    ]
}


def worker_router(
    fleet: Fleet, registry: Registry, *, object_max_bytes: int = ARTIFACT_MAX_BYTES
) -> APIRouter:
    """Everything a worker calls, and what makes one."""
    workers = WorkerKeys(registry, fleet.app.clock)
    keys = Keys(workers, fleet.settings.admin_secret)
    work = RemoteWork(fleet, artifact_max_bytes=object_max_bytes)
    router = APIRouter()
    _add_calls(router, work, workers, keys)
    _add_reads(router, work, keys)
    _add_artifacts(router, work, keys)
    _add_registration(router, workers, keys)
    return router


def _add_calls(router: APIRouter, work: RemoteWork, workers: WorkerKeys, keys: Keys) -> None:
    def heartbeat(worker: Worker, asked: wire.WorkerHeartbeat) -> wire.Welcome:
        if not worker.id:
            raise Problem(
                403,
                "Not for the administrator",
                "a heartbeat is a worker's.",
                remedy="Send it with the worker's key.",
            )
        check_version(asked.version)
        workers.seen(worker.id, slots=asked.slots, busy=asked.busy, version=asked.version)
        return wire.Welcome(id=worker.id, next_s=wire.HEARTBEAT_EVERY_S, version=__version__)

    # Their own threads keep their connections, and cost less than those of a pool for all.
    repeats, threads = Repeats(), ThreadPoolExecutor(AT_ONCE, "worker-tasks")
    for path, shape, answer, summary in _CALLS:
        name = path.rsplit("/", 1)[-1]
        act = heartbeat if path == wire.HEARTBEAT else getattr(work, name)
        router.add_api_route(
            path,
            _endpoint(act, name, shape, keys, repeats, threads),
            methods=["POST"],
            tags=_TAGS,
            operation_id=f"worker{name.capitalize()}",
            summary=summary,
            response_class=Response,
            responses={200: {"model": answer, "description": "The answer"}} | _CALL_PROBLEMS,
            openapi_extra=json_body(shape),
        )


def _endpoint(
    act: Callable[[Worker, Any], wire.Answer],
    name: str,
    shape: type[wire.Call],
    keys: Keys,
    repeats: Repeats,
    threads: ThreadPoolExecutor,
) -> Any:
    def answered(request: Request, worker: Worker | None, body: bytes) -> bytes:
        worker = worker or keys.caller(request)
        call = parse(shape, body)

        def answer() -> bytes:
            return act(worker, call).model_dump_json().encode()

        repeat = request.headers.get(wire.CALL_HEADER, "")[:200]
        if not repeat:
            return answer()
        return repeats.once((worker.id, name, repeat, hashlib.sha256(body).digest()), answer)

    async def endpoint(request: Request) -> Response:
        worker = None
        if declared_bytes(request) > SMALL_BYTES:
            worker = await to_thread.run_sync(keys.caller, request)
        body = await read_body(request, SMALL_BYTES if worker is None else wire.BODY_MAX_BYTES)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(threads, answered, request, worker, body)
        return Response(answer, media_type="application/json")

    return endpoint


def _add_reads(router: APIRouter, work: RemoteWork, keys: Keys) -> None:
    bytes_: dict[str, Any] = {
        "tags": _TAGS,
        "response_class": Response,
        "responses": _BYTES | _FILE_PROBLEMS,
        "openapi_extra": _LEASE,
    }

    @router.get(
        wire.INPUTS,
        tags=_TAGS,
        operation_id="workerInputs",
        response_model=wire.InputPage,
        responses=_FILE_PROBLEMS,
        openapi_extra=_LEASE,
    )
    def inputs(
        request: Request,
        input: Annotated[str, Query(max_length=200)] = "",
        after: Annotated[int, Query(ge=-1, lt=2**63)] = -1,
    ) -> Response:
        """A page of a task's input: what the tasks upstream made."""
        page = remote_files.input_page(_held(work, keys, request), input, after)
        return Response(page.model_dump_json(), media_type="application/json")

    @router.get(wire.FILE, operation_id="workerInputFile", **bytes_)
    def file(
        request: Request,
        input: Annotated[str, Query(max_length=200)] = "",
        name: Annotated[str, Query(max_length=1024)] = "",
        index: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    ) -> Response:
        """A file of an input, or one range of it."""
        held = _held(work, keys, request)
        wanted = held, input, index, name
        if wire.DIRECT_HEADER in request.headers and (at := remote_files.direct_file(*wanted)):
            return _redirect(at[0], {SHA256_HEADER: at[1].sha256})
        with remote_files.input_file(*wanted) as (path, ref):
            return sent(request, path, {"ETag": f'"{ref.sha256}"', SHA256_HEADER: ref.sha256})

    @router.get(wire.SOURCE, operation_id="workerSource", **bytes_)
    def source(request: Request) -> Response:
        """The source of a task's job, or one range of it."""
        held = _held(work, keys, request)
        found = held.opened.job.source
        if wire.DIRECT_HEADER in request.headers and (url := remote_files.direct_source(held)):
            return _redirect(url, {wire.VERSION_HEADER: found.version})
        with remote_files.source_file(held) as path:
            return sent(request, path, {"ETag": f'"{quote(found.fingerprint, safe=":")}"'})


def _add_artifacts(router: APIRouter, work: RemoteWork, keys: Keys) -> None:
    @router.put(
        f"{wire.ARTIFACTS}/{{name:path}}",
        tags=_TAGS,
        operation_id="workerPutArtifact",
        status_code=201,
        response_model=wire.Uploaded,
        responses=documented(400, 401, 403, 409, 410, 411, 413, 422, 426, 503),
        openapi_extra={**_LEASE, "requestBody": {"required": True, "content": _BINARY}},
    )
    async def artifact(request: Request, name: str) -> Response:
        """Add a file to an attempt, its SHA-256 checked while it is read."""

        def enter() -> HeldTask:
            held = _held(work, keys, request)
            check_artifact_name(held, name)
            return held

        def keep() -> wire.Uploaded:
            work.check_current(held)  # sending it may have taken long
            return remote_files.add_artifact(held, name, body, request.headers[SHA256_HEADER])

        held = await to_thread.run_sync(enter)
        async with received(request, held.spool, work.artifact_max_bytes) as body:
            kept = await to_thread.run_sync(keep)
        return Response(kept.model_dump_json(), 201, media_type="application/json")


def _add_registration(router: APIRouter, workers: WorkerKeys, keys: Keys) -> None:
    new_key: dict[str, Any] = {"tags": _ADMIN_TAGS, "status_code": 201, "response_model": NewKey}
    id_ = Path(pattern=r"^[A-Za-z0-9._-]{1,128}$")

    async def created(request: Request, act: Callable[[bytes], NewKey]) -> Response:
        keys.admin(request)
        key = await to_thread.run_sync(act, await read_body(request, REGISTRATION_MAX_BYTES))
        return JSONResponse(asdict(key), 201, headers={"Cache-Control": "no-store"})

    @router.post(
        f"{API}/workers",
        operation_id="registerWorker",
        responses=_CALL_PROBLEMS,
        openapi_extra=json_body(wire.Registration),
        **new_key,
    )
    async def register(request: Request) -> Response:
        """Register a worker. The answer has its key, which is shown only once."""

        def act(body: bytes) -> NewKey:
            asked = parse(wire.Registration, body)
            _check_size("can", asked.can)
            _check_size("metadata", asked.metadata)
            check_version(asked.version)
            return workers.register(**dict(asked))

        return await created(request, act)

    @router.post(
        f"{API}/workers/{{id}}/rotate",
        operation_id="rotateWorkerKey",
        responses=_CALL_PROBLEMS | documented(404),
        openapi_extra=json_body(wire.Rotation),
        **new_key,
    )
    async def rotate(request: Request, id: str = id_) -> Response:
        """Give a worker a new key. Those it has end after `keep_s`, at once by default."""
        return await created(
            request, lambda body: workers.rotate(id, **dict(parse(wire.Rotation, body or b"{}")))
        )

    @router.delete(
        f"{API}/workers/{{id}}",
        tags=_ADMIN_TAGS,
        operation_id="revokeWorker",
        status_code=204,
        responses=_CALL_PROBLEMS | documented(404),
    )
    def revoke(request: Request, id: str = id_) -> Response:
        """Disable a worker, from its next call on. What it holds ends with its leases."""
        keys.admin(request)
        workers.revoke(id)
        return Response(status_code=204)


def _held(work: RemoteWork, keys: Keys, request: Request) -> HeldTask:
    """The task whose lease token came with a request, which is the caller's."""
    worker = keys.caller(request)
    token = request.headers.get(wire.LEASE_HEADER, "")
    if token and len(token) <= wire.TOKEN_MAX:
        return work.current(worker, token)
    raise Problem(
        401,
        "A lease token is needed",
        f"expected the header {wire.LEASE_HEADER} with the token of a lease.",
        remedy="Send the token that came with the lease.",
    )


def _redirect(url: str, headers: Mapping[str, str]) -> Response:
    """To the store itself, whose URL is for whoever asked: nobody keeps it."""
    own = {"Location": url, "Cache-Control": "no-store"}
    return Response(status_code=307, headers={**headers, **own})


def _check_size(name: str, value: Any) -> None:
    found = len(json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass"))
    if found > wire.METADATA_MAX_BYTES:
        raise Problem(
            413,
            f"Too much {name}",
            f"{name} has {found} bytes of JSON; the limit is {wire.METADATA_MAX_BYTES}.",
            remedy=f"Send at most {wire.METADATA_MAX_BYTES} bytes of JSON.",
        )
