"""What a worker and a server say to each other: headers, limits, and the documents of every call.

Both ends take them from here, and `docs/reference/worker-api.md` describes them for workers in
other languages. A request is read strictly, an answer leniently. No document grows with a plan or
with a fan-in: inputs come in pages, and a result that is not small is an artifact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from intermission.model import Reason

API = "/api/v1/worker"
PROGRAM_HEADER = "Intermission-Version"
"""The version of the program that calls."""
CALL_HEADER = "Idempotency-Key"
PROBLEM_PREFIX = "urn:intermission:error:"
"""What the `type` of a problem starts with; the name of an error class follows."""
METADATA_MAX_BYTES = 10 * 1024
HEARTBEAT_EVERY_S = 30
LEASE_HEADER = "Intermission-Lease"
"""Carries the lease token of the task whose inputs, source or artifacts a call is about."""
DIRECT_HEADER = "Intermission-Direct"
"""Asks for a redirect (307) to where the store itself gives a file; without it, the server does."""
VERSION_HEADER = "Intermission-Version"
"""With such a redirect to a source: the entity tag that the answer has to have."""
DIRECT_S = 300
"""How long a URL of the store is good."""
DIRECT_MIN_BYTES = 1024**2
DIRECT_MAX_BYTES = 4 * 1024**3
"""Smaller artifacts go through the server, and so do those that stores take only in parts."""
BODY_MAX_BYTES = 8 * 1024**2
LEASES_MAX = 1000
"""As many leases in one call, at most."""
PAGE_MAX = 500
PAGE_MAX_BYTES = 512 * 1024
"""A page of inputs ends with the output that reaches one of these."""
FIRST_PAGE_MAX = 16
FIRST_PAGE_MAX_BYTES = 8 * 1024
"""As much of each input comes with the lease itself."""
INLINE_MAX_BYTES = 64 * 1024
"""Files of a task that together have as much may come with its end."""
DIRECT, INLINE = "direct", "data:;base64,"
"""The key, on a worker's side, of an artifact that it sent to the store itself; and what the key
starts with of one that comes with the end, before its bytes."""
FILES_MAX = 20_000
TOKEN_MAX = 4096

CLAIM, RENEW, COMPLETE = f"{API}/claim", f"{API}/renew", f"{API}/complete"
FAIL, RELEASE, DEFER = f"{API}/fail", f"{API}/release", f"{API}/defer"
INPUTS, FILE, SOURCE = f"{API}/inputs", f"{API}/file", f"{API}/source"
ARTIFACTS, CANCELLED = f"{API}/artifacts", f"{API}/cancelled"
UPLOAD, HEARTBEAT = f"{API}/upload", f"{API}/heartbeat"

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Label = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$")]
Number = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0, le=366 * 24 * 3600)]
Token = Annotated[str, Field(min_length=1, max_length=TOKEN_MAX)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Result = Annotated[str, Field(max_length=1024**2)]
TaskReason = Literal[Reason.FAILED, Reason.TIMED_OUT, Reason.CRASHED, Reason.INVALID]
Message = Annotated[str, Field(max_length=20_000)]
LeaseSeconds = Annotated[float, Field(ge=0.5, le=3600)]


def task_reason(code: str) -> TaskReason:
    """The code of a failure that counts as an attempt."""
    return next((one for one in get_args(TaskReason) if one == code), Reason.FAILED)


class Call(BaseModel):
    """What is asked: read strictly, a field that nobody knows or a number in quotes is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


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


class Claim(Call):
    """What a worker has room for."""

    process: Name
    room: Annotated[int, Field(ge=1, le=LEASES_MAX)]
    lease_s: LeaseSeconds | None = None
    """The server's own setting, unless the worker asks for another."""
    offers: Annotated[tuple[Label, ...], Field(max_length=100)] = ()
    runs: Annotated[tuple[Name, ...], Field(max_length=1000)] | None = None
    """The codes (`pipeline@graph`) it can run; null for any."""
    host: Name | None = None
    """The machine, so that one which cannot run a task is not given it again."""
    begin: bool = True
    """Whether all of them are started at once; else a heartbeat says when each is."""


class HeldLease(Call):
    lease: Token
    progress: Annotated[float, Field(ge=0, le=1)] = 0.0
    begun: bool = True


class Renew(Call):
    process: Name
    leases: Annotated[list[HeldLease], Field(max_length=LEASES_MAX)]
    lease_s: LeaseSeconds | None = None


class Cancelled(Call):
    leases: Annotated[list[Token], Field(max_length=LEASES_MAX)]


class Artifact(Call):
    """A file that was uploaded under a lease, or comes with its end."""

    name: Annotated[str, Field(min_length=1, max_length=512)]
    size_bytes: Number
    sha256: Sha256
    direct: bool = False
    """Whether it was sent to the store itself."""
    content: Annotated[str, Field(max_length=INLINE_MAX_BYTES * 4 // 3 + 4)] | None = None
    """Its bytes in base64, if it was not sent before."""


class Upload(Call):
    """A file that a worker would rather send to the store itself."""

    lease: Token
    name: Annotated[str, Field(min_length=1, max_length=512)]
    size_bytes: Number


class Done(Call):
    lease: Token
    result: Result
    """JSON; empty when it is the artifact `result.json`."""
    files: Annotated[list[Artifact], Field(max_length=FILES_MAX)] = Field(
        default_factory=list[Artifact]
    )


class Complete(Call):
    done: Annotated[list[Done], Field(max_length=LEASES_MAX)]


class FailedAttempt(Call):
    lease: Token
    error: Name
    message: Message
    reason: TaskReason = Reason.FAILED
    permanent: bool = False
    retry_after_s: Seconds | None = None


class Fail(Call):
    failed: Annotated[list[FailedAttempt], Field(max_length=LEASES_MAX)]


class Release(Call):
    leases: Annotated[list[Token], Field(max_length=LEASES_MAX)]
    reason: Reason
    message: Message = ""
    host: Name | None = None
    """The machine that cannot run these tasks; null where nobody is to blame."""
    exclude_s: Seconds = 60.0
    """How long it does not get them."""


class Defer(Call):
    lease: Token
    token: Annotated[str, Field(min_length=1, max_length=4096)]
    timeout_s: Seconds


class Answer(BaseModel):
    """What a server answers; a newer one may say more."""

    model_config = ConfigDict(frozen=True)


class FileReference(Answer):
    name: str
    size_bytes: int
    sha256: str
    url: str
    """Below the server: sent with the key and the lease token. Absolute: sent with neither."""


class InputOutput(Answer):
    """What one task upstream made."""

    index: int
    key: str
    result: str | None
    """JSON; empty when it is the file `result.json`; null for a chunk that was skipped."""
    files: list[FileReference]


class InputPage(Answer):
    outputs: list[InputOutput]
    next: int | None
    """Ask with `after` set to this for the next page; null at the end."""


class TaskInput(InputPage):
    step: str
    is_list: bool
    """Whether the step takes all outputs of the step above, or one."""


class SourceReference(Answer):
    name: str
    size_bytes: int
    fingerprint: str
    url: str


class LeasedTask(Answer):
    """A lease, and everything that is needed to run its task."""

    token: str
    task: int
    fence: int
    job: str
    pipeline: str
    code: str
    step: str
    version: int
    durable: bool
    params: Mapping[str, Any]
    chunk: Any
    index: int
    attempt: int
    key: str
    """Equal for every attempt at this task: pass it on to a paid API."""
    source: SourceReference
    inputs: dict[str, TaskInput]
    timeout_s: float | None
    artifact_max_bytes: int
    result_max_bytes: int
    inline_max_bytes: int = 0
    """As much may come with the end of the task, of its files together."""
    lease_s: float
    alone: bool
    """Run nothing beside it: its last workers vanished, and it may be what killed them."""


class Welcome(Answer):
    """What a heartbeat is answered with."""

    id: str
    next_s: int
    version: str


class Claimed(Answer):
    leases: list[LeasedTask]
    again: bool
    """Whether to ask again at once: some tasks were already finished."""


class Renewed(Answer):
    lost: list[int]
    cancelled: list[int]


class CancelledJobs(Answer):
    jobs: list[str]
    """The keys of those that are cancelled."""


class End(Answer):
    accepted: bool
    problem: str = ""
    """Why a result was refused; a lease that is lost has no problem but that."""


class Completed(Answer):
    ends: list[End]


class Failed(Answer):
    states: list[str | None]
    """The state each task is in now; null for a lease that is lost."""


class Released(Answer):
    released: int


class Deferred(Answer):
    accepted: bool


class UploadAt(Answer):
    url: str | None
    """Where to PUT it, without the key or the token; null: through the server."""
    headers: dict[str, str]
    """To be sent with it."""


class Uploaded(Answer):
    name: str
    size_bytes: int
    sha256: str


C = TypeVar("C", bound=Call)

_LONG_NUMBER = re.compile(rb"\d{19}")


def read_call(shape: type[C], body: bytes) -> C:
    """The call in these bytes. Raises `ValueError`, which says what does not fit."""
    if _LONG_NUMBER.search(body):  # in a string, most often: hashes have such digits
        json.loads(body, parse_int=_int64)
    return shape.model_validate_json(body)


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
