"""The words of Intermission as values: states, jobs, tasks, leases, receipts.

This module owns the one transition table and the one way to compute an identity. It imports
nothing but the standard library and blake3, does no I/O and reads no clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform
from urllib.parse import unquote, urlsplit

from blake3 import blake3

T = TypeVar("T")

RESULT_INLINE_MAX_BYTES = 64 * 1024
"""A result up to this size lives inside its receipt; a larger one becomes an artifact."""


class TaskState(StrEnum):
    BLOCKED = "blocked"
    PENDING = "pending"
    LEASED = "leased"
    RUNNING = "running"
    DONE = "done"
    RETRYING = "retrying"
    FAILED = "failed"
    ABANDONED = "abandoned"
    CORRUPT = "corrupt"
    CANCELLED = "cancelled"


class JobState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DRAINING = "draining"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Reason(StrEnum):
    """Why an attempt ended, for programs. Whose end it was decides what it costs."""

    # The task's: each costs one attempt.
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    INVALID = "invalid"
    DEFERRAL_TIMED_OUT = "deferral-timed-out"
    # The host's: no attempt, and this host does not get the task again for a while.
    NO_PIPELINE = "no-pipeline"
    OTHER_VERSION = "other-version"
    MISSING_PACKAGE = "missing-package"
    NO_DEVICE = "no-device"
    SCRATCH_FULL = "scratch-full"
    SCRATCH_FAILED = "scratch-failed"
    SOURCE_UNREACHABLE = "source-unreachable"
    STORE_UNREACHABLE = "store-unreachable"
    HOST_FAULT = "host-fault"
    # Nobody's: no attempt.
    DRAINED = "drained"
    LEASE_LOST = "lease-lost"
    STORE_AWAY = "store-away"
    LEDGER_AWAY = "ledger-away"
    NO_SLOT = "no-slot"
    LOST = "lost"  # its worker vanished: counted apart, because the task may have killed it
    CANCELLED = "cancelled"
    INPUT_STOPPED = "input-stopped"
    INPUT_LOST = "input-lost"
    CORRUPT = "corrupt"


LOST_MAX = 10
"""So many workers may vanish while they run one task before it fails."""
ALONE_AFTER = 2
"""After so many, nothing else runs beside it: a task that kills its machine is found."""

_S = TaskState

CLAIMABLE = frozenset({_S.PENDING, _S.RETRYING, _S.ABANDONED, _S.CORRUPT})
HELD = frozenset({_S.LEASED, _S.RUNNING})
FINISHED = frozenset({_S.DONE, _S.FAILED, _S.CANCELLED})

TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = {
    # A leased task turns `running` at its first heartbeat; one that ends sooner never does.
    _S.BLOCKED: frozenset({_S.PENDING, _S.CANCELLED}),
    # What is claimable is done without a lease where its receipt stands.
    _S.PENDING: frozenset({_S.LEASED, _S.DONE, _S.CANCELLED, _S.BLOCKED}),
    _S.LEASED: frozenset(
        {_S.RUNNING, _S.DONE, _S.RETRYING, _S.FAILED, _S.ABANDONED, _S.CANCELLED, _S.BLOCKED}
    ),
    _S.RUNNING: frozenset(
        {_S.DONE, _S.RETRYING, _S.FAILED, _S.ABANDONED, _S.CANCELLED, _S.BLOCKED}
    ),
    _S.RETRYING: frozenset({_S.LEASED, _S.DONE, _S.CANCELLED, _S.BLOCKED, _S.PENDING}),
    # While nobody else claimed it, a late owner still holds the fence and may go on.
    _S.ABANDONED: frozenset(
        {_S.LEASED, _S.RUNNING, _S.DONE, _S.RETRYING, _S.FAILED, _S.CANCELLED, _S.BLOCKED}
    ),
    _S.CORRUPT: frozenset({_S.LEASED, _S.DONE, _S.CANCELLED, _S.BLOCKED}),
    # `done` is left only because bytes were lost: its own (corrupt) or an input's (blocked).
    _S.DONE: frozenset({_S.CORRUPT, _S.BLOCKED}),
    # By hand: `retry` puts a failed or cancelled task back, and what hangs on it.
    _S.FAILED: frozenset({_S.PENDING, _S.BLOCKED}),
    _S.CANCELLED: frozenset({_S.PENDING, _S.BLOCKED}),
}

JOB_TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset(
        {JobState.RUNNING, JobState.DRAINING, JobState.DONE, JobState.FAILED, JobState.CANCELLED}
    ),
    JobState.RUNNING: frozenset(
        {JobState.DRAINING, JobState.DONE, JobState.FAILED, JobState.CANCELLED}
    ),
    JobState.DRAINING: frozenset(
        {JobState.RUNNING, JobState.DONE, JobState.FAILED, JobState.CANCELLED}
    ),
    # An ended job starts again when a task of it does: `retry`, or a corrupt artifact.
    JobState.DONE: frozenset({JobState.RUNNING}),
    JobState.FAILED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.CANCELLED: frozenset({JobState.RUNNING}),
}


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical(value: Any) -> str:
    """The one JSON text of a value, whatever order its mappings were built in."""
    return _CANONICAL.encode(value)


def framed(*parts: str) -> bytes:
    """A sequence of strings, each after its length: no two different sequences look alike."""
    return b"".join([b"%d:%b" % (len(data := part.encode()), data) for part in parts])


def identity(*parts: str, after: bytes = b"") -> str:
    """A 160-bit name for a sequence of strings, of which `after` is the framed beginning."""
    return blake3(after + framed(*parts)).digest(20).hex()


def identities(after: bytes, first: Iterable[str], *more: Iterable[str]) -> Iterator[str]:
    """`identity(*parts, after=after)` for the parts these sequences have in turn: very many."""
    if more:
        yield from (identity(*parts, after=after) for parts in zip(first, *more, strict=True))
        return
    digest = blake3()
    for part in first:
        data = part.encode()
        digest.reset()
        digest.update(b"%b%d:%b" % (after, len(data), data))
        yield digest.digest(20).hex()


def identity_of_all(first: str, rest: Iterable[str]) -> str:
    """The same name as `identity(first, *rest)`, for a sequence too long to hold."""
    digest = blake3(framed(first))
    for part in rest:
        digest.update(framed(part))
    return digest.digest(20).hex()


@dataclass_transform(frozen_default=True)
def _mass_produced(cls: type[T]) -> type[T]:
    """A value of which tens of thousands a second are made and sent to other processes.

    Frozen for the type checker alone: to freeze one takes longer than to claim a task.
    """
    made = dataclass(slots=True, unsafe_hash=True)(cls)
    names: tuple[str, ...] = getattr(made, "__match_args__")  # noqa: B009
    values = attrgetter(*names)

    def __reduce__(self: Any) -> tuple[Any, ...]:
        return made, values(self)

    made.__reduce__ = __reduce__
    return made


class StepKind(StrEnum):
    PLAN = "plan"
    MAP = "map"
    REDUCE = "reduce"
    SINGLE = "single"


class EdgeKind(StrEnum):
    ONE = "one"
    """The upstream step has a single task."""
    SAME = "same"
    """Both steps are mapped over the same chunks: chunk 7 waits for chunk 7 alone."""
    ALL = "all"
    """Every task of the upstream step: a fan-in."""


@dataclass(frozen=True, slots=True)
class Edge:
    """`param` of a step is the result of the step `upstream`."""

    param: str
    upstream: str
    kind: EdgeKind


@dataclass(frozen=True, slots=True)
class Groups:
    """How a step's tasks are told apart for people: one group for each value of a field."""

    by: str
    size: str = ""
    """The field that says how many parts a chunk has; without it, one."""
    skipped: str = ""
    """The step whose result has `skipped`: groups without tasks, each a `name` and a `reason`."""


@dataclass(frozen=True, slots=True)
class StepSpec:
    """What the ledger and the worker need to know of a step, without its code."""

    name: str
    version: int
    kind: StepKind
    edges: tuple[Edge, ...] = ()
    params: tuple[str, ...] = ()
    """The pipeline parameters this step declares; only these are part of its tasks' keys."""
    reads_source: bool = False
    plan: str | None = None
    """For a mapped step: the plan whose chunks it is mapped over."""
    needs: str | None = None
    prefers: str | None = None
    """Workers that do not offer this label get its tasks once they have waited for a while."""
    attempts: int = 3
    timeout_s: float | None = None
    concurrency: int | None = None
    retry_delays_s: tuple[float, ...] | None = None
    durable: bool = True
    """Its results have receipts; without, they are in the ledger alone."""
    skippable: bool = False
    """A task that fails for good is skipped instead of failing the job: its result is None."""
    publish: str | None = None
    batch_by: tuple[str, ...] = ()
    """Tasks whose chunks agree in these fields are handed to a slot as one batch."""
    groups: Groups | None = None
    entrypoints: bool = False
    """Its files lead to those of other steps: published last, always at the top."""


@dataclass(frozen=True, slots=True)
class Source:
    """A media file: where it is and which content it had when the job was planned."""

    uri: str
    fingerprint: str
    size_bytes: int = 0
    version: str = ""
    """What the storage said of the file then (inode and times, an ETag); no part of any key."""

    @property
    def path(self) -> Path:
        """The local file; raises ValueError for a source that is not on this machine."""
        parts = urlsplit(self.uri)
        if parts.scheme != "file":
            raise ValueError(f"{self.uri} is not a local file")
        return Path(unquote(parts.path))

    @property
    def name(self) -> str:
        return unquote(urlsplit(self.uri).path).rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class Job:
    """One pipeline over one source with one set of parameters."""

    key: str
    pipeline: str
    graph: str
    """What `graph_of` its steps gives: part of its key, so that another graph is another job."""
    source: Source
    params: str
    """All parameters with their values, as canonical JSON."""
    steps: tuple[StepSpec, ...]
    priority: int = 0
    not_before_ms: int = 0
    """Nothing of it is claimable sooner. No part of its key, as the priority is none."""
    output: str = ""
    """The folder or prefix of its outputs. No part of its key either."""

    @property
    def code(self) -> str:
        """What a worker must have to run it: this pipeline with this graph."""
        return code_of(self.pipeline, self.graph)

    def step(self, name: str) -> StepSpec:
        for spec in self.steps:
            if spec.name == name:
                return spec
        raise KeyError(name)

    def to_json(self) -> str:
        return canonical(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        data = json.loads(text)
        data["source"] = Source(**data["source"])
        data["steps"] = tuple(_step_from(step) for step in data["steps"])
        return cls(**data)


def code_of(pipeline: str, graph: str) -> str:
    """The name under which workers say that they have a pipeline, in one version of it."""
    return f"{pipeline}@{graph[:16]}"


def _step_from(data: dict[str, Any]) -> StepSpec:
    edges = tuple(Edge(e["param"], e["upstream"], EdgeKind(e["kind"])) for e in data["edges"])
    delays = data["retry_delays_s"]
    typed: dict[str, Any] = {
        "kind": StepKind(data["kind"]),
        "edges": edges,
        "params": tuple(data["params"]),
        "retry_delays_s": None if delays is None else tuple(delays),
        "batch_by": tuple(data.get("batch_by", ())),
        "groups": Groups(**data["groups"]) if data.get("groups") else None,
    }
    return StepSpec(**{**data, **typed})


PROGRESS_EVERY_MS = 5_000
"""How long a task's progress is not told in the event log again; and never by less than 1 %."""

PREFERENCE_MS = 60_000
"""How long a task waits for a worker that its step prefers."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How much may run of a job, a pipeline, or all steps that need or prefer a label."""

    name: str
    """`job:KEY`, `pipeline:NAME` or `label:NAME`."""
    running: int | None = None
    """At a time."""
    per_minute: float | None = None
    paused: bool = False
    """Nothing starts, whatever the bounds are."""

    @staticmethod
    def names(job: Job, spec: StepSpec) -> tuple[str, ...]:
        """The limits that a step of a job is under, where there are any."""
        labels = {f"label:{label}" for label in (spec.needs, spec.prefers) if label}
        return (f"job:{job.key}", f"pipeline:{job.pipeline}", *sorted(labels))

    @property
    def is_none(self) -> bool:
        return self.running is None and self.per_minute is None and not self.paused

    @property
    def burst(self) -> float:
        """How many may start at once after a rest: a tenth of a minute's."""
        return max(1.0, (self.per_minute or 0.0) / 10)


@_mass_produced
class Task:
    """One step on one chunk of one job, as it is submitted."""

    step: str
    index: int
    """The chunk's place in the plan; 0 for a step that is not mapped. Never an identity."""
    key: str
    chunk: str | None = None


@dataclass(frozen=True, slots=True)
class FileRef:
    """An artifact as its receipt names it. `key` is where the store keeps it."""

    name: str
    key: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The commit record of a task. What is in it is finished; what is not never happened."""

    task_key: str
    step: str
    version: int
    attempt: str
    fence: int
    result: str
    """The step's result as JSON, or "" when it is the artifact `result.json`."""
    files: tuple[FileRef, ...] = ()
    worker: str = ""
    ended_ms: int = 0
    chunk: str | None = None
    parts: Mapping[str, str] = field(default_factory=dict[str, str])
    """What its key was made of, so that a later run can say what changed."""
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    """By parameter, a digest of the results and files with receipts that it was made from."""

    def to_json(self) -> str:
        fields = {name: getattr(self, name) for name in self.__match_args__}
        fields["files"] = [asdict(file) for file in self.files]
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Receipt:
        data = json.loads(text)
        data["files"] = tuple(FileRef(**f) for f in data["files"])
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Output:
    """What a finished task hands to the tasks downstream, read from its receipt."""

    task_key: str
    result: str
    files: tuple[FileRef, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """One task of a step, as the tasks downstream see it."""

    index: int
    state: TaskState
    output: Output | None
    """None unless it is done; one that failed or was cancelled may be a gap."""


@_mass_produced
class Lease:
    """The right to run one task. What it takes from upstream is read by whoever runs it."""

    task_id: int
    fence: int
    attempt: int
    job_key: str
    step: str
    index: int
    key: str
    chunk: str | None = None
    alone: bool = False
    """Run nothing beside it: its last workers vanished, and it may be what killed them."""
    token: str = ""
    """Proves to the server that gave it whose it is; empty where no server did."""


@_mass_produced
class Completion:
    """A task's end as the ledger records it."""

    task_id: int
    fence: int  # without an attempt, as the task's row had it
    result: str
    receipt: Receipt | None = None
    """None for a step that is not durable: its result is in the ledger alone."""
    adopted: bool = False
    """The receipt was there before this attempt ran anything."""
    key: str | None = None
    """The task's key as its lease had it: a ledger restored from a copy may have given the
    task's id, and even the fence, to another task since. None where nobody knows."""
    by_receipt: bool = False
    """No attempt was made: nobody holds the task, and its receipt stands."""
    tasks: Sequence[Task] = ()
    """The last page of what a plan adds to the job; the others came by `expand`."""
    totals: Mapping[str, int] | None = None
    """How many tasks the steps have that are mapped over the plan; without, those of `tasks`."""
    plans: frozenset[str] = frozenset()
    """The plans that were done when its tasks were computed, this one included."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt's failure. `delay_s` is how long to wait before the next."""

    task_id: int
    fence: int
    error: str
    message: str
    permanent: bool = False
    delay_s: float = 0.0
    key: str | None = None
    """As in a completion."""
    code: str = Reason.FAILED


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life for one lease, with the progress made so far."""

    task_id: int
    fence: int
    progress: float = 0.0
    begun: bool = True  # False for a companion of a batch that waits for its turn


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a renewal told the worker about its leases, by task id."""

    lost: frozenset[int] = frozenset()
    cancelled: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as the ledger has it now."""

    id: int
    step: str
    index: int
    key: str
    chunk: str | None
    state: TaskState
    attempts: int
    """How many attempts were its own: those of vanished workers and drains are none."""
    fence: int
    worker: str | None = None
    progress: float = 0.0
    error: str | None = None
    message: str | None = None
    adopted: bool = False
    started_ms: int | None = None
    ended_ms: int | None = None
    ready_ms: int | None = None
    code: str | None = None
    """The `Reason` of its last end."""
    lost: int = 0
    """How many workers vanished while they ran it."""
    refusals: int = 0
    """How many hosts gave it back because they cannot run it; `message` has the last word."""

    @property
    def tries(self) -> int:
        """The attempts that ended by the task's own fault, and the one under way or done."""
        return self.attempts + (self.state in HELD or self.state is TaskState.DONE)

    @property
    def name(self) -> str:
        return self.step if self.chunk is None else f"{self.step}[{self.index}]"


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as the ledger has it now, with its tasks counted by step and state."""

    id: int
    job: Job
    state: JobState
    created_ms: int
    updated_ms: int
    reason: str | None = None
    counts: Mapping[str, Mapping[TaskState, int]] = field(
        default_factory=dict[str, Mapping[TaskState, int]]
    )

    def total(self, *states: TaskState) -> int:
        """Tasks in these states, or all tasks when none is given."""
        counts = (pair for by_state in self.counts.values() for pair in by_state.items())
        return sum(count for state, count in counts if not states or state in states)


@dataclass(frozen=True, slots=True)
class Event:
    """One change, in the order it was committed."""

    seq: int
    at_ms: int
    job_key: str
    task_id: int | None
    task: str | None
    was: str | None
    now: str
    fence: int | None = None
    worker: str | None = None
    message: str | None = None
    progress: float | None = None
    """Of a task that makes progress and changes nothing else: `was` and `now` are `running`."""
    code: str | None = None
    """The `Reason` where an attempt ended or a task was stopped."""
    step: str | None = None
    index: int | None = None
