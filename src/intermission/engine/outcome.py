"""What a slot tells its worker. Tuples, because a busy slot sends many thousands a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from intermission.model import Completion


class Finished(NamedTuple):
    completion: Completion
    took_s: float
    warnings: tuple[str, ...] = ()


class Ends(NamedTuple):
    """Many that finished, field by field: what a worker receives in their place."""

    completions: Sequence[Completion]
    took_s: Sequence[float]
    warnings: Sequence[tuple[str, ...]]


class Failed(NamedTuple):
    task_id: int
    fence: int
    error: str
    message: str
    permanent: bool
    wait_s: float | None = None
    """How long the attempt was told to wait before the next; None leaves it to the step."""


class Deferral(NamedTuple):
    task_id: int
    fence: int
    token: str
    timeout_s: float


class CorruptInput(NamedTuple):
    """An input's bytes are not what its receipt says; the task itself has done nothing."""

    task_id: int
    fence: int
    input_key: str
    """The key of the task that made the input."""
    file_key: str
    message: str


class HostFault(NamedTuple):
    """The machine is at fault, not the task: the attempt does not count."""

    task_id: int
    fence: int
    message: str
    remedy: str
    exit_code: int


class Progressed(NamedTuple):
    task_id: int
    fence: int
    fraction: float


Trouble = Failed | Deferral | CorruptInput | HostFault
Outcome = Finished | Trouble
