"""Reading calls and remembering answers: what the endpoints for workers share."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from intermission.operations.worker_protocol import work_schema as wire
from intermission.web.problems import Problem

C = TypeVar("C", bound=wire.Call)

KEEP_S = 120.0
KEEP_MAX_BYTES = 64 * 1024**2
_WAIT_S = 60.0


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body, read no further than the limit."""
    if declared_bytes(request) > max_bytes:
        raise too_large(max_bytes)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise too_large(max_bytes)
    except ClientDisconnect:
        raise cut() from None
    return bytes(body)


def declared_bytes(request: Request) -> int:
    """What the caller says that the body has; 0 where it does not say."""
    declared = request.headers.get("content-length", "")
    return int(declared[:20]) if declared.isascii() and declared.isdecimal() else 0


def parse(shape: type[C], body: bytes) -> C:
    """A call, read strictly."""
    try:
        return wire.read_call(shape, body)
    except (ValueError, RecursionError) as e:
        reason = wire.explain(e) if isinstance(e, ValueError) else "it is nested too deeply"
        raise Problem(
            422,
            "The call does not fit",
            f"{shape.__name__.lower()} cannot be read: {reason}.",
            remedy="The API's description says what each field must be.",
        ) from e


def too_large(max_bytes: int) -> Problem:
    return Problem(
        413,
        "The body is too large",
        f"at most {max_bytes} bytes are read.",
        remedy="Send less at once.",
    )


def cut() -> Problem:
    return Problem(400, "The body was cut", "the caller went away.", remedy="Send it again.")


def json_body(shape: type[wire.Call]) -> dict[str, Any]:
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


class Repeats:
    """Answers of the last minutes by call, so that a call whose answer was lost is not done twice.

    In this process's memory alone: after a restart the ledger's own compare-and-set has to do.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[tuple[Any, ...], threading.Event] = {}
        self._kept: OrderedDict[tuple[Any, ...], tuple[float, bytes]] = OrderedDict()
        self._kept_bytes = 0

    def once(self, name: tuple[Any, ...], act: Callable[[], bytes]) -> bytes:
        """What `act` answers, or answered when this call came before. Errors are not kept."""
        while True:
            with self._lock:
                if name in self._kept:
                    return self._kept[name][1]
                running = self._running.get(name)
                if running is None:
                    done = self._running[name] = threading.Event()
                    break
            if not running.wait(_WAIT_S):
                raise Problem(
                    503,
                    "The first call is still being answered",
                    "this is a repeat, and the first has no answer yet.",
                    remedy="Ask again in a while.",
                    headers={"Retry-After": "1"},
                )
        try:
            answer = act()
            with self._lock:
                self._keep(name, answer)
            return answer
        finally:
            with self._lock:
                del self._running[name]
            done.set()

    def _keep(self, name: tuple[Any, ...], answer: bytes) -> None:
        now_s = time.monotonic()
        self._kept[name] = now_s, answer
        self._kept_bytes += len(answer)
        while self._kept:
            oldest, (at_s, old) = next(iter(self._kept.items()))
            if self._kept_bytes <= KEEP_MAX_BYTES and now_s - at_s < KEEP_S:
                break
            del self._kept[oldest]
            self._kept_bytes -= len(old)
