"""The ledger over HTTP, for the commands of an operator: one endpoint for each of its methods.

They need the admin secret. A worker's key opens none of them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from anyio import to_thread
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from intermission.composition.fleet import Fleet
from intermission.errors import NotFound
from intermission.operations.worker_protocol import rpc_schema
from intermission.web.auth import Keys
from intermission.web.request_body import Repeats, declared_bytes, parse, read_body

SMALL_BYTES = 64 * 1024
"""A body up to this size is read before anybody asks whose it is."""
PUBLIC = frozenset(
    {
        *("jobs", "tasks", "receipts", "outputs", "events", "workers", "refusals", "limits"),
        *("retry", "cancel", "limit"),
    }
)
"""What the public API offers as well: open to everybody where that is, so that commands work."""
AT_ONCE = 4
"""Calls in the ledger at a time: more would only wait for each other's transactions."""


def add_ledger(router: APIRouter, fleet: Fleet, keys: Keys) -> None:
    """The endpoints of the ledger."""
    # Threads of its own: they keep their connections, and cost less than those of a pool for all.
    repeats, threads = Repeats(), ThreadPoolExecutor(AT_ONCE, "worker-ledger")
    for method in rpc_schema.METHODS.values():
        router.add_api_route(
            f"{rpc_schema.API}/ledger/{method.name}",
            _endpoint(method, fleet, keys, repeats, threads),
            methods=["POST"],
            response_class=Response,
            include_in_schema=False,
        )


def json_body(shape: type[rpc_schema.Call]) -> dict[str, Any]:
    """The description of an endpoint's body, which it reads by itself to be strict."""
    schema = inlined(shape.model_json_schema())
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without references: its definitions would be looked for in the whole document."""
    known = schema.pop("$defs", {})

    def fill(part: Any) -> Any:
        if isinstance(part, dict):
            if "$ref" in part:
                return fill(known[part["$ref"].rsplit("/", 1)[-1]])
            return {name: fill(value) for name, value in part.items()}
        return [fill(value) for value in part] if isinstance(part, list) else part

    return fill(schema)


def _endpoint(
    method: rpc_schema.Method, fleet: Fleet, keys: Keys, repeats: Repeats, threads: Executor
) -> Any:
    def act(request: Request, is_admitted: bool, body: bytes) -> bytes:
        if not is_admitted:
            _admit(method, keys, request)
        call = parse(method.call, body)

        def answer() -> bytes:
            return rpc_schema.write_answer(method, answered(fleet, call))

        name = request.headers.get(rpc_schema.CALL_HEADER, "")[:200]
        if not name or not method.writes:
            return answer()
        return repeats.once((method.name, name, _digest(body)), answer)

    async def endpoint(request: Request) -> Response:
        is_large = declared_bytes(request) > SMALL_BYTES
        if is_large:
            await to_thread.run_sync(_admit, method, keys, request)
        body = await read_body(request, rpc_schema.CALL_MAX_BYTES if is_large else SMALL_BYTES)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(threads, act, request, is_large, body)
        return Response(answer, media_type="application/json")

    return endpoint


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _admit(method: rpc_schema.Method, keys: Keys, request: Request) -> None:
    if method.name not in PUBLIC or not keys.visitor(request):
        keys.operator(request)


def answered(fleet: Fleet, call: rpc_schema.Call) -> Any:
    """What the ledger answers: a call has the name and the arguments of its method."""
    try:
        answer = getattr(fleet.ledger, rpc_schema.method_of(call).name)(**dict(call))
        return list(answer) if isinstance(answer, Iterator) else answer
    except KeyError as e:
        raise NotFound(f"the job has no step {str(e)[:80]}.") from e
