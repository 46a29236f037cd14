"""What a worker and its slots say to each other, whatever carries the messages.

A slot never speaks to a ledger. Ends are tuples, because a busy slot sends thousands a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from intermission.model import Job, Lease, Output, Reason, Receipt
from intermission.ports.task_io import TaskIO
from intermission.settings import Settings


@dataclass(frozen=True)
class JobContext:
    """How a slot works on one job: sent once, before its first task. It must pickle."""

    name: str
    """No two jobs that a worker has open share it."""
    job: Job
    ref: str
    """Where its code is, as the worker's own catalog has it."""
    open_io: Callable[[], TaskIO]
    folder: Path
    """Where logs go."""
    worker: str
    settings: Settings


Inputs = Mapping[str, Iterable[Output | None]]
"""By parameter, what a task takes from upstream: one output, or all of a fan-in's, in which None
stands for a chunk that was skipped."""


class InputPage(NamedTuple):
    """A part of a fan-in that is too long for the message with its batch. Comes before it."""

    task_id: int
    param: str
    first: int
    """The index of the first; with 0, what came before is forgotten."""
    outputs: Sequence[Output | None]


class Batch(NamedTuple):
    """Leases of one step to run one after the other. More than one only if none can be long,
    or if they share one decode."""

    context: str
    leases: Sequence[Lease]
    inputs: Mapping[int, Inputs]
    """By task; those that came in pages are missing."""


class Cancel(NamedTuple):
    """Nobody wants the result of this task any more."""

    task_id: int


class Completed(NamedTuple):
    """The attempt ended well."""

    task_id: int
    result: str
    receipt: Receipt | None = None
    """None for a step that is not durable."""
    adopted: bool = False
    """The receipt was there before."""
    took_s: float = 0.0
    warnings: tuple[str, ...] = ()


class Failed(NamedTuple):
    """The attempt failed, and it was the task's own doing."""

    task_id: int
    error: str
    message: str
    permanent: bool
    wait_s: float | None = None
    """How long the attempt was told to wait before the next; None leaves it to the step."""
    code: Reason = Reason.FAILED


class Deferral(NamedTuple):
    task_id: int
    token: str
    timeout_s: float


class CorruptInput(NamedTuple):
    """An input's bytes are not what its receipt says; the task itself has done nothing."""

    task_id: int
    input_key: str
    """The key of the task that made the input."""
    file_key: str
    message: str


class HostFault(NamedTuple):
    """The machine is at fault, or a store that is away, and not the task: no attempt is used."""

    task_id: int
    message: str
    remedy: str
    exit_code: int
    reason: Reason = Reason.HOST_FAULT


class Progress(NamedTuple):
    task_id: int
    fraction: float


Trouble = Failed | Deferral | CorruptInput | HostFault
Outcome = Completed | Trouble
Results = Sequence[Outcome | Progress]
"""One message from a slot."""
