"""Where a worker's tasks come from, and where their ends go.

Three ways: the jobs of one command in order, a shared ledger, a server. A `WorkSource` hands out
leases; each comes with its job, and how a task ended is told to the job. All of it is called by
the worker's own thread, except `Renewals`, which the lease renewer opens for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from intermission.model import Heartbeat, Job, Lease, Reason, Renewal, TaskState
from intermission.ports.ledger import Ask
from intermission.ports.slot_protocol import (
    Completed,
    CorruptInput,
    Deferral,
    Failed,
    HostFault,
    Inputs,
    JobContext,
)


class Renewals(Protocol):
    """The lease renewer's own way to whoever gave the leases."""

    def renew(self, worker: str, heartbeats: Sequence[Heartbeat], *, lease_ttl_s: float) -> Renewal:
        """As `Ledger.renew`."""
        ...

    def cancelled(self, job_keys: Collection[str]) -> set[str]:
        """Which of these jobs are cancelled; a read that costs little. Raises `LedgerError`."""
        ...

    def close(self) -> None: ...


class ClaimedJob(Protocol):
    """A job that this worker has leases of: what its slots need, and where ends go.

    Changes raise `LedgerError` when they could not be written; the worker keeps the leases and
    writes them again, in order. A change that took effect may be repeated.
    """

    @property
    def name(self) -> str:
        """No two open jobs share it."""
        ...

    @property
    def job(self) -> Job: ...

    @property
    def open_renewals(self) -> Callable[[], Renewals]:
        """Equal for jobs whose leases are renewed over one connection."""
        ...

    def context(self) -> JobContext:
        """What a slot must know before it can run any of the tasks."""
        ...

    def inputs(self, leases: Sequence[Lease]) -> Mapping[int, Inputs]:
        """By task, what tasks of one step take from upstream; a fan-in is read as it is walked.

        Raises `LedgerError`, and `InputUnfinished` for a task that was taken back. So does
        walking along a fan-in.
        """
        ...

    def complete(
        self, done: Sequence[tuple[Lease, Completed]], ask: Ask | None = None
    ) -> list[Lease]:
        """Record tasks of one step that ended well.

        Leases that can be had in the same transaction, if any are asked for. Raises
        `CorruptArtifact` for a plan whose result is lost.
        """
        ...

    def fail(self, lease: Lease, failed: Failed) -> TaskState | None:
        """Record a failed attempt; the task's state now, None for a stale fence."""
        ...

    def invalidate(self, lease: Lease, corrupt: CorruptInput) -> None:
        """Send the task that made a lost input back to work, and this one to wait for it."""
        ...

    def defer(self, lease: Lease, deferral: Deferral) -> None:
        """Keep a task running without a worker until an outside event finishes it."""
        ...

    def release(self, leases: Sequence[Lease], *, reason: Reason, message: str = "") -> None:
        """Give leases back: no attempt is used."""
        ...


class Claimed(NamedTuple):
    lease: Lease
    job: ClaimedJob


class Wakeable(Protocol):
    """Something that says when it is worth asking again; a `Notifier` is one."""

    def fileno(self) -> int: ...

    def clear(self) -> None: ...


class WorkSource(Protocol):
    """What a worker asks for work."""

    @property
    def is_shared(self) -> bool:
        """Whether other workers could run what this one gives back.

        Then an answer that fails to come is waited for, and a fault of this machine excludes it
        from some work. Without, either ends the worker, with progress saved.
        """
        ...

    @property
    def has_more(self) -> bool:
        """Whether there is, or may come, anything to do; False ends the worker."""
        ...

    @property
    def ask_at_s(self) -> float:
        """When it is worth asking again, by the monotonic clock."""
        ...

    @property
    def wakes(self) -> Sequence[Wakeable]:
        """What tells an idle worker that it is worth asking before that."""
        ...

    def ask_soon(self) -> None:
        """Something ended, or a hint came: ask when the worker next has room."""
        ...

    def claim(self, room: int, busy: Collection[str], *, begin: bool = True) -> list[Claimed]:
        """Leases for up to `room` tasks, those of one job together.

        Without `begin`, some of them may have to wait for a slot: a heartbeat says which began.
        Also called now and then with no room, because a source looks after what vanished workers
        held. `busy` are the names of the jobs that this worker still holds leases of: the others
        may be closed. Raises `LedgerError`.
        """
        ...

    def complete(
        self, job: ClaimedJob, done: Sequence[tuple[Lease, Completed]], room: int
    ) -> list[Claimed]:
        """Record tasks of one step that ended well; what comes next of the job, if that is known
        at once, for up to `room` tasks. Raises as `ClaimedJob.complete`."""
        ...

    def refuse(self, job: ClaimedJob, leases: Sequence[Lease], fault: HostFault) -> None:
        """Give leases back that this host can't run, and stop asking for their like for a while.

        Raises `EnvironmentFault` where there is no other host.
        """
        ...

    def finished(self, job: ClaimedJob, step: str) -> None:
        """Tasks of a step are done and recorded: others may be claimable because of it."""
        ...

    def leave(self, reason: str | None) -> None:
        """The worker comes to its end, for this reason if it was asked to: say so to the jobs."""
        ...

    def close(self) -> None:
        """Close what is open, however the worker ended."""
        ...
