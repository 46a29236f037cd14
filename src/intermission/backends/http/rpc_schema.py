"""What an operator's commands and a server exchange: the ledger's calls and answers, as JSON.

Both ends take their shapes from here. A call is read strictly: a field that nobody knows, a
number in quotes or a number beyond 64 bits is refused. An answer is read leniently, so that a
newer server may add to it. Nothing here sends, stores or decides anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from intermission import model
from intermission.model import (
    Completion,
    Event,
    Failure,
    Heartbeat,
    Job,
    JobRow,
    JobState,
    Lease,
    Output,
    Renewal,
    Task,
    TaskOutput,
    TaskRow,
    TaskState,
)
from intermission.ports.ledger import DeferredTask, Refusal
from intermission.ports.store import Stat

T = TypeVar("T")

API = "/api/v1/worker"
AREAS = ("store", "outputs")
VERSION_HEADER = "Intermission-Version"
MODIFIED_HEADER = "Intermission-Modified-Ms"
MISSING_HEADER = "Intermission-Missing"
"""Says that an object is missing, where an answer has no body to say it in."""
CALL_HEADER = "Idempotency-Key"
PROBLEM_PREFIX = "urn:intermission:error:"
"""What the `type` of a problem starts with; the name of an error class follows."""
CALL_MAX_BYTES = 64 * 1024**2
"""Of one call's JSON: a plan's completion names every task it adds."""
CAPACITY_MAX = 10_000
METADATA_MAX_BYTES = 10 * 1024
HEARTBEAT_EVERY_S = 30

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Label = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$")]
Token = Annotated[str, Field(min_length=1, max_length=4096)]
Prefix = Annotated[str, Field(max_length=200)]
Number = Annotated[int, Field(ge=0, lt=2**63)]
PageSize = Annotated[int, Field(ge=1, le=100_000)]
Seconds = Annotated[float, Field(ge=0, le=366 * 24 * 3600)]


class Call(BaseModel):
    """The arguments of one method of the ledger."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Claim(Call):
    worker: Name
    capacity: Annotated[int, Field(ge=0, le=CAPACITY_MAX)]
    lease_ttl_s: Seconds
    host: Annotated[str, Field(max_length=200)] = ""
    offers: Annotated[tuple[Label, ...], Field(max_length=1000)] = ()
    runs: Annotated[tuple[Prefix, ...], Field(max_length=1000)] | None = None
    jobs: tuple[Prefix, ...] | None = None
    begin: bool = True


class Renew(Call):
    worker: Name
    heartbeats: list[Heartbeat]
    lease_ttl_s: Seconds


class Expand(Call):
    task_id: Number
    fence: Number
    key: str
    tasks: list[Task]


class Complete(Call):
    done: list[Completion]


class Fail(Call):
    failures: list[Failure]


class Release(Call):
    leases: list[tuple[Number, Number]]
    reason: str
    message: str | None = None
    host: Annotated[str, Field(max_length=200)] | None = None
    until_s: Seconds = 0


class Defer(Call):
    task_id: Number
    fence: Number
    token: Token
    timeout_s: Seconds


class Rescue(Call):
    dead: tuple[Name, ...] = ()


class Submit(Call):
    job: Job
    tasks: list[Task]


class Retry(Call):
    job_key: Prefix
    task_ids: tuple[Number, ...] | None = None


class Cancel(Call):
    job_key: Prefix
    reason: str


class Invalidate(Call):
    task_ids: tuple[Number, ...]
    reason: str


class Delete(Call):
    job_key: Prefix


class Mark(Call):
    job_key: Prefix
    state: JobState
    reason: str | None = None


class Limit(Call):
    limit: model.Limit


class Limits(Call):
    pass


class Jobs(Call):
    key_prefix: Prefix = ""
    states: tuple[JobState, ...] = ()
    pipeline: Prefix | None = None
    source: Annotated[str, Field(max_length=4000)] | None = None
    before: Number | None = None
    limit: Number | None = None


class Tasks(Call):
    job_key: Prefix
    states: tuple[TaskState, ...] = ()
    step: Prefix | None = None
    after: Number = 0
    limit: PageSize = 1000


class Receipts(Call):
    job_key: Prefix
    after: Number = 0
    limit: PageSize = 1000


class Outputs(Call):
    job_key: Prefix
    step: Prefix
    after: Annotated[int, Field(ge=-1, lt=2**63)] = -1
    limit: PageSize = 1000


class Deferred(Call):
    token: Token


class Events(Call):
    after: Number = 0
    job: Prefix | None = None
    limit: PageSize = 1000


class Refusals(Call):
    pass


class Workers(Call):
    pass


class Answer(BaseModel, Generic[T]):
    """What a method answered."""

    answer: T


@dataclass(frozen=True)
class Method:
    """One method of the ledger on the wire."""

    name: str
    call: type[Call]
    answer: TypeAdapter[Answer[Any]]
    writes: bool


def _method(call: type[Call], answer: Any, *, writes: bool = True) -> Method:
    shape: Any = Answer.__class_getitem__(answer)
    adapter: TypeAdapter[Answer[Any]] = TypeAdapter(shape)
    return Method(call.__name__.lower(), call, adapter, writes)


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        _method(Claim, list[Lease]),
        _method(Renew, Renewal),
        _method(Expand, bool),
        _method(Complete, list[bool]),
        _method(Fail, list[TaskState | None]),
        _method(Release, int),
        _method(Defer, bool),
        _method(Rescue, int),
        _method(Invalidate, list[TaskRow]),
        _method(Mark, bool),
        _method(Jobs, list[JobRow], writes=False),
        _method(Receipts, list[tuple[TaskRow, Output]], writes=False),
        _method(Outputs, list[TaskOutput], writes=False),
        _method(Tasks, list[TaskRow], writes=False),
        _method(Submit, bool),
        _method(Retry, int),
        _method(Cancel, bool),
        _method(Delete, bool),
        _method(Limit, None),
        _method(Limits, list[model.Limit], writes=False),
        _method(Deferred, DeferredTask | None, writes=False),
        _method(Events, list[Event], writes=False),
        _method(Workers, list[str], writes=False),
        _method(Refusals, list[Refusal], writes=False),
    )
}


def method_of(call: Call) -> Method:
    return METHODS[type(call).__name__.lower()]


class Move(Call):
    """Rename an object of a store."""

    key: str
    to: str


class Registration(Call):
    """What a new worker is."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    version: Annotated[str, Field(max_length=64)]
    can: Annotated[tuple[Label, ...], Field(max_length=100)] = ()
    metadata: dict[str, Any] = Field(default_factory=dict)
    expires_s: Annotated[float, Field(gt=0, le=10 * 366 * 24 * 3600)] | None = None


class Rotation(Call):
    """A new key for a worker; `keep_s` is how long those it has go on working."""

    keep_s: Annotated[float, Field(ge=0, le=30 * 24 * 3600)] = 0
    expires_s: Annotated[float, Field(gt=0, le=10 * 366 * 24 * 3600)] | None = None


class WorkerHeartbeat(Call):
    """A worker's sign of life."""

    version: Annotated[str, Field(max_length=64)]
    slots: Annotated[int, Field(ge=0, le=100_000)]
    busy: Annotated[int, Field(ge=0, le=100_000)]


C = TypeVar("C", bound=Call)

stats: TypeAdapter[Stat] = TypeAdapter(Stat)

_LONG_NUMBER = re.compile(rb"\d{19}")


def read_call(shape: type[C], body: bytes) -> C:
    """The call in these bytes. Raises `ValueError`, which says what does not fit."""
    if _LONG_NUMBER.search(body):  # in a string, most often: hashes have such digits
        json.loads(body, parse_int=_int64)
    call = shape.model_validate_json(body)
    if isinstance(call, Complete):
        # Pydantic reads an Iterable as it is walked through, which must not be in a transaction.
        done = [replace(one, tasks=list(one.tasks)) for one in call.done]
        return call.model_copy(update={"done": done})
    return call


def _int64(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (number := int(digits)) < 2**63:
        raise ValueError("a number does not fit into 64 bits")
    return number


def explain(e: ValueError) -> str:
    """What is wrong with a call, in a line, without repeating what may be a secret."""
    if not isinstance(e, ValidationError):
        return str(e) if not isinstance(e, json.JSONDecodeError) else "it is not JSON"
    first = e.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def write_answer(method: Method, answer: Any) -> bytes:
    return method.answer.dump_json(Answer[Any].model_construct(answer=answer))


def read_answer(method: Method, body: bytes) -> Any:
    """Raises `ValueError` for what is no answer."""
    return method.answer.validate_json(body).answer


def size_of(value: Any) -> int:
    """How many bytes a value takes as JSON."""
    return len(json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass"))
