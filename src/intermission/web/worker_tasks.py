"""The calls by which a worker gets tasks, keeps them and ends them, and their files.

Each is authorised by the worker's key, and those about one task by its lease token too. This file
reads requests and writes answers; what a call means is `operations.remote_work`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Annotated, Any
from urllib.parse import quote

from anyio import to_thread
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from intermission.operations.held_tasks import NoLease, Worker
from intermission.operations.remote_work import RemoteWork
from intermission.operations.worker_protocol import work_schema as wire
from intermission.web.auth import Keys
from intermission.web.problems import Problem, documented
from intermission.web.request_body import Repeats, declared_bytes, json_body, parse, read_body
from intermission.web.transfer import SHA256_HEADER, received, sent

SMALL_BYTES = 64 * 1024
"""A body up to this size is read before anybody asks whose it is."""
AT_ONCE = 8
"""Calls at a time that wait for the ledger or the disk."""
_TAGS: list[str | Enum] = ["worker"]
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_LEASE: dict[str, Any] = {
    "name": wire.LEASE_HEADER,
    "in": "header",
    "required": True,
    "description": "The token of the lease.",
    "schema": {"type": "string", "minLength": 1, "maxLength": wire.TOKEN_MAX},
}
_CALLS: tuple[tuple[str, type[wire.Call], type[wire.Answer], str], ...] = (
    (wire.CLAIM, wire.Claim, wire.Claimed, "Take tasks: leases, each with its token."),
    (wire.RENEW, wire.Renew, wire.Renewed, "Keep leases, and say how far their tasks are."),
    (wire.COMPLETE, wire.Complete, wire.Completed, "End tasks well: the server writes receipts."),
    (wire.FAIL, wire.Fail, wire.Failed, "End attempts that failed."),
    (wire.RELEASE, wire.Release, wire.Released, "Give leases back; the attempts do not count."),
    (wire.CANCELLED, wire.Cancelled, wire.CancelledJobs, "Which jobs of leases are cancelled."),
    (wire.UPLOAD, wire.Upload, wire.UploadAt, "Where the store itself takes an artifact."),
    (wire.DEFER, wire.Defer, wire.Deferred, "Leave a task to be finished by an outside event."),
)


def add_tasks(router: APIRouter, work: RemoteWork, keys: Keys) -> None:
    """The endpoints of tasks, the busiest first: a router looks at one after the other."""
    # Their own threads keep their connections, and cost less than those of a pool for all.
    repeats, threads = Repeats(), ThreadPoolExecutor(AT_ONCE, "worker-tasks")
    for path, shape, answer, summary in _CALLS:
        name = path.rsplit("/", 1)[-1]
        router.add_api_route(
            path,
            _endpoint(getattr(work, name), name, shape, keys, repeats, threads),
            methods=["POST"],
            tags=_TAGS,
            operation_id=f"worker{name.capitalize()}",
            summary=summary,
            response_class=Response,
            responses={200: {"model": answer, "description": "The answer"}}
            | documented(400, 401, 403, 413, 422, 426, 503),
            openapi_extra=json_body(shape),
        )
    _add_reads(router, work, keys)
    _add_source(router, work, keys)
    _add_artifacts(router, work, keys)


def _endpoint(
    act: Callable[[Worker, Any], wire.Answer],
    name: str,
    shape: type[wire.Call],
    keys: Keys,
    repeats: Repeats,
    threads: ThreadPoolExecutor,
) -> Any:
    def answered(request: Request, worker: Worker | None, body: bytes) -> bytes:
        worker = worker or _worker(keys, request)
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
            worker = await to_thread.run_sync(_worker, keys, request)
        body = await read_body(request, SMALL_BYTES if worker is None else wire.BODY_MAX_BYTES)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(threads, answered, request, worker, body)
        return Response(answer, media_type="application/json")

    return endpoint


_PROBLEMS = documented(401, 403, 404, 409, 410, 416, 422, 426, 503)
_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The bytes", "content": _BINARY},
    206: {"description": "A range of them", "content": _BINARY},
    307: {"description": "Where the store itself gives them; only if that was asked for"},
}


def _add_reads(router: APIRouter, work: RemoteWork, keys: Keys) -> None:
    @router.get(
        wire.INPUTS,
        tags=_TAGS,
        operation_id="workerInputs",
        response_model=wire.InputPage,
        responses=_PROBLEMS,
        openapi_extra={"parameters": [_LEASE]},
    )
    def inputs(
        request: Request,
        input: Annotated[str, Query(max_length=200)] = "",
        after: Annotated[int, Query(ge=-1, lt=2**63)] = -1,
    ) -> Response:
        """A page of a task's input: what the tasks upstream made."""
        worker, lease = _worker(keys, request), _lease(request)
        page = _with_lease(lambda: work.files.inputs(worker, lease, input, after))
        return Response(page.model_dump_json(), media_type="application/json")

    @router.get(
        wire.FILE,
        tags=_TAGS,
        operation_id="workerInputFile",
        response_class=Response,
        responses=_BYTES | _PROBLEMS,
        openapi_extra={"parameters": [_LEASE]},
    )
    def file(
        request: Request,
        input: Annotated[str, Query(max_length=200)] = "",
        name: Annotated[str, Query(max_length=1024)] = "",
        index: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    ) -> Response:
        """A file of an input, or one range of it."""
        worker, lease = _worker(keys, request), _lease(request)

        def send() -> Response:
            place = worker, lease, input, index, name
            if wire.DIRECT_HEADER in request.headers and (at := work.files.direct_file(*place)):
                return _redirect(at[0], {SHA256_HEADER: at[1].sha256})
            with work.files.input_file(worker, lease, input, index, name) as (path, ref):
                return sent(request, path, {"ETag": f'"{ref.sha256}"', SHA256_HEADER: ref.sha256})

        return _with_lease(send)


def _add_source(router: APIRouter, work: RemoteWork, keys: Keys) -> None:
    @router.get(
        wire.SOURCE,
        tags=_TAGS,
        operation_id="workerSource",
        response_class=Response,
        responses=_BYTES | _PROBLEMS,
        openapi_extra={"parameters": [_LEASE]},
    )
    def source(request: Request) -> Response:
        """The source of a task's job, or one range of it."""
        worker, lease = _worker(keys, request), _lease(request)

        def send() -> Response:
            if wire.DIRECT_HEADER in request.headers and (
                at := work.files.direct_source(worker, lease)
            ):
                return _redirect(at[0], {wire.VERSION_HEADER: at[1].version})
            with work.files.source(worker, lease) as (path, found):
                return sent(request, path, {"ETag": f'"{quote(found.fingerprint, safe=":")}"'})

        return _with_lease(send)


def _add_artifacts(router: APIRouter, work: RemoteWork, keys: Keys) -> None:
    @router.put(
        f"{wire.ARTIFACTS}/{{name:path}}",
        tags=_TAGS,
        operation_id="workerPutArtifact",
        status_code=201,
        response_model=wire.Uploaded,
        responses=documented(400, 401, 403, 409, 410, 411, 413, 422, 426, 503),
        openapi_extra={
            "parameters": [_LEASE],
            "requestBody": {"required": True, "content": _BINARY},
        },
    )
    async def artifact(request: Request, name: str) -> Response:
        """Add a file to an attempt, its SHA-256 checked while it is read."""
        files = work.files

        def enter() -> tuple[Worker, str, Any]:
            worker, lease = _worker(keys, request), _lease(request)
            return worker, lease, _with_lease(lambda: files.spool(worker, lease, name))

        worker, lease, folder = await to_thread.run_sync(enter)
        async with received(request, folder, work.artifact_max_bytes) as body:
            sha256 = request.headers[SHA256_HEADER]

            def keep() -> wire.Uploaded:
                return _with_lease(lambda: files.add_artifact(worker, lease, name, body, sha256))

            kept = await to_thread.run_sync(keep)
        return Response(kept.model_dump_json(), 201, media_type="application/json")


def _redirect(url: str, headers: Mapping[str, str]) -> Response:
    """To the store itself, whose URL is for whoever asked: nobody keeps it."""
    own = {"Location": url, "Cache-Control": "no-store"}
    return Response(status_code=307, headers={**headers, **own})


def _worker(keys: Keys, request: Request) -> Worker:
    caller = keys.caller(request)
    return Worker(caller.name, caller.secret)


def _lease(request: Request) -> str:
    token = request.headers.get(wire.LEASE_HEADER, "")
    if token and len(token) <= wire.TOKEN_MAX:
        return token
    raise Problem(
        401,
        "A lease token is needed",
        f"expected the header {wire.LEASE_HEADER} with the token of a lease.",
        remedy="Send the token that came with the lease.",
    )


def _with_lease(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except NoLease as e:
        raise Problem(410, "The lease is not yours", e.message, remedy=e.remedy) from e
