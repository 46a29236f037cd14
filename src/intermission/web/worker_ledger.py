"""The ledger over HTTP: one endpoint for each of its methods.

A worker's key opens what a supervisor needs, and only for its own leases: a lease without the
seal that the server gave with it is treated like one whose fence is gone. The rest is for the
administrator. Which tasks go to whom, and when a lease ends, the ledger alone decides.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from anyio import to_thread
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from intermission.backends.http import rpc_schema
from intermission.composition.fleet import Fleet
from intermission.errors import NotFound, UsageError
from intermission.model import Completion, Failure, Heartbeat, JobState, Renewal
from intermission.ports.ledger import Ledger
from intermission.web.auth import Caller, Keys
from intermission.web.problems import Problem, documented
from intermission.web.request_body import Repeats, declared_bytes, parse, read_body

SMALL_BYTES = 64 * 1024
"""A body up to this size is read before anybody asks whose it is."""
PUBLIC = frozenset(
    {
        *("jobs", "tasks", "receipts", "outputs", "events", "workers", "limits"),
        *("retry", "cancel", "limit"),
    }
)
"""What the public API offers as well: open to everybody where that is, so that commands work."""
AT_ONCE = 4
"""Calls in the ledger at a time: more would only wait for each other's transactions."""


def add_ledger(router: APIRouter, fleet: Fleet, keys: Keys) -> None:
    """The endpoints of the ledger, the busiest first: a router looks at one after the other."""
    # Threads of its own: they keep their connections, and cost less than those of a pool for all.
    repeats, threads = Repeats(), ThreadPoolExecutor(AT_ONCE, "worker-ledger")
    for method in rpc_schema.METHODS.values():
        router.add_api_route(
            f"{rpc_schema.API}/ledger/{method.name}",
            _endpoint(method, fleet, keys, repeats, threads),
            methods=["POST"],
            tags=["worker ledger"],
            operation_id=f"worker{method.name.capitalize()}",
            summary=f"The ledger's {method.name}",
            response_class=Response,
            responses=_described(method),
            include_in_schema=False,
            openapi_extra=json_body(method.call),
        )


def _described(method: rpc_schema.Method) -> dict[int | str, dict[str, Any]]:
    schema = inlined(method.answer.json_schema(mode="serialization"))
    answer = {"description": "The answer", "content": {"application/json": {"schema": schema}}}
    return {200: answer} | documented(400, 401, 403, 404, 409, 413, 422, 426, 503)


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
    def act(request: Request, caller: Caller | None, body: bytes) -> bytes:
        caller = caller or _admitted(method, keys, request)
        call = parse(method.call, body)

        def answer() -> bytes:
            return rpc_schema.write_answer(method, answered(fleet.ledger, caller, call))

        name = request.headers.get(rpc_schema.CALL_HEADER, "")[:200]
        if not name or not method.writes:
            return answer()
        return repeats.once((caller.name, method.name, name, _digest(body)), answer)

    async def endpoint(request: Request) -> Response:
        caller = None
        if declared_bytes(request) > SMALL_BYTES:
            caller = await to_thread.run_sync(_admitted, method, keys, request)
        limit = rpc_schema.CALL_MAX_BYTES if caller is not None else SMALL_BYTES
        body = await read_body(request, limit)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(threads, act, request, caller, body)
        return Response(answer, media_type="application/json")

    return endpoint


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _admitted(method: rpc_schema.Method, keys: Keys, request: Request) -> Caller:
    if method.name in PUBLIC and (visitor := keys.visitor(request)) is not None:
        return visitor
    caller = keys.caller(request)
    if caller.worker is not None and not method.for_workers:
        raise Problem(
            403,
            "Not for workers",
            f"{method.name} needs the admin secret, and this is a worker's key.",
            remedy="Use the commands of the server for it.",
        )
    return caller


def answered(ledger: Ledger, caller: Caller, call: rpc_schema.Call) -> Any:
    """What the ledger answers to a call of this caller."""
    match call:
        case rpc_schema.Claim():
            return _claim(ledger, caller, call)
        case rpc_schema.Renew():
            return _renew(ledger, caller, call)
        case rpc_schema.Complete(done=done, seals=seals):
            own = caller.owned(_held(done), seals)
            answers = iter(ledger.complete(_only(done, own)) if any(own) else ())
            return [mine and next(answers) for mine in own]
        case rpc_schema.Fail(failures=failures, seals=seals):
            own = caller.owned(_held(failures), seals)
            states = iter(ledger.fail(_only(failures, own)) if any(own) else ())
            return [next(states) if mine else None for mine in own]
        case rpc_schema.Release(leases=leases, seals=seals):
            return ledger.release(
                _only(leases, caller.owned(leases, seals)),
                reason=call.reason,
                message=call.message,
                host=call.host,
                until_s=call.until_s,
            )
        case rpc_schema.Defer(task_id=task_id, fence=fence, seals=seals):
            token, timeout_s = call.token, call.timeout_s
            return caller.owned([(task_id, fence)], seals) == [True] and ledger.defer(
                task_id, fence, token=token, timeout_s=timeout_s
            )
        case rpc_schema.Rescue(dead=dead):
            return ledger.rescue([caller.stamped(process) for process in dead])
        case rpc_schema.Mark():
            return _mark(ledger, caller, call)
        case _:
            try:
                return _plain(ledger, call)
            except KeyError as e:
                raise NotFound(f"the job has no step {str(e)[:80]}.") from e


def _plain(ledger: Ledger, call: rpc_schema.Call) -> Any:
    """What is the same for everybody who may ask."""
    match call:
        case rpc_schema.Invalidate(task_ids=task_ids, reason=reason):
            return ledger.invalidate(task_ids, reason=reason)
        case rpc_schema.Jobs():
            return ledger.jobs(**dict(call))
        case rpc_schema.Tasks(job_key=job_key, states=states, step=step):
            return list(ledger.tasks(job_key, states=states, step=step))
        case rpc_schema.Receipts(job_key=job_key):
            return list(ledger.receipts(job_key))
        case rpc_schema.Outputs(job_key=job_key, step=step):
            return ledger.outputs(job_key, step)
        case rpc_schema.Submit(job=job, tasks=tasks):
            return ledger.submit(job, tasks)
        case rpc_schema.Retry(job_key=job_key, task_ids=task_ids):
            return ledger.retry(job_key, task_ids)
        case rpc_schema.Cancel(job_key=job_key, reason=reason):
            return ledger.cancel(job_key, reason=reason)
        case rpc_schema.Delete(job_key=job_key):
            return ledger.delete(job_key)
        case rpc_schema.Limit(limit=limit):
            return ledger.limit(limit)
        case rpc_schema.Limits():
            return ledger.limits()
        case rpc_schema.Deferred(token=token):
            return ledger.deferred(token)
        case rpc_schema.Events(after=after, job=job, limit=limit):
            return ledger.events(after, job=job, limit=limit)
        case rpc_schema.Workers():
            return ledger.workers()
    raise UsageError(f"the ledger has no {type(call).__name__.lower()}.")


def _claim(ledger: Ledger, caller: Caller, call: rpc_schema.Claim) -> rpc_schema.Claimed:
    leases = ledger.claim(
        caller.stamped(call.worker),
        call.capacity,
        lease_ttl_s=call.lease_ttl_s,
        host=call.host,
        offers=call.offers,
        runs=call.runs,
        jobs=call.jobs,
        begin=call.begin,
    )
    return rpc_schema.Claimed(leases, caller.seals([(one.task_id, one.fence) for one in leases]))


def _renew(ledger: Ledger, caller: Caller, call: rpc_schema.Renew) -> Renewal:
    own = caller.owned(_held(call.heartbeats), call.seals)
    foreign = {
        heartbeat.task_id for heartbeat, mine in zip(call.heartbeats, own, strict=True) if not mine
    }
    answer = ledger.renew(
        caller.stamped(call.worker), _only(call.heartbeats, own), lease_ttl_s=call.lease_ttl_s
    )
    return Renewal(answer.lost | foreign, answer.cancelled)


def _mark(ledger: Ledger, caller: Caller, call: rpc_schema.Mark) -> bool:
    if caller.worker is not None and call.state is not JobState.DRAINING:
        raise Problem(
            403,
            "Not for workers",
            f"a worker may say that it leaves a job, not that the job is {call.state}.",
            remedy="Use the commands of the server for it.",
        )
    return ledger.mark(call.job_key, call.state, reason=call.reason)


def _held(ones: Sequence[Heartbeat | Completion | Failure]) -> list[tuple[int, int]]:
    return [(one.task_id, one.fence) for one in ones]


def _only(ones: Sequence[Any], own: Sequence[bool]) -> list[Any]:
    return [one for one, mine in zip(ones, own, strict=True) if mine]
