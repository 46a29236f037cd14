"""What a worker does to tasks and jobs, as events for whoever listens.

The events are made from what the worker knows, so that telling costs the ledger next to nothing:
they have no number, and `was` is not known. It must never hold up or fail the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, cast

from intermission.errors import LedgerError
from intermission.model import Completion, Event, Failure, JobState, Lease, TaskState
from intermission.ports.clock import Clock
from intermission.ports.ledger import Ledger

LOOK_EVERY_S = 0.5
"""How often a job is looked at that may have ended."""
UNNUMBERED = 0
_LIVE = frozenset({JobState.PENDING, JobState.RUNNING, JobState.DRAINING})


class ProgressEvents:
    """Watches over one worker's shoulder; everything here is called by the worker's thread."""

    def __init__(self, ledger: Ledger, tell: Callable[[Event], None], clock: Clock) -> None:
        self.ledger = cast(Ledger, _Overheard(ledger, self))
        """For the worker to use: it tells what it is asked for."""
        self._plain = ledger
        self._tell = tell
        self._clock = clock
        self._leases: dict[int, tuple[Lease, str]] = {}
        """What is held, and by which worker."""
        self._jobs: dict[str, JobState | None] = {}
        """Jobs whose state may have changed, as it was told last."""
        self._look_at_s = 0.0

    def claimed(self, worker: str, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self._leases[lease.task_id] = lease, worker
            self._about(lease.task_id, TaskState.LEASED)
            self._jobs.setdefault(lease.job_key, None)

    def progressed(self, task_id: int, fraction: float) -> None:
        self._about(task_id, TaskState.RUNNING, progress=fraction)

    def ended(self, task_id: int, state: TaskState | None, message: str | None = None) -> None:
        """None for a task that is somebody else's by now."""
        if state is not None:
            self._about(task_id, state, message=message)
        lease, _ = self._leases.pop(task_id, (None, ""))
        if lease is not None:
            self._jobs.setdefault(lease.job_key, None)

    def look(self) -> None:
        """See whether jobs have begun or ended; now and then, and only after something changed."""
        now_s = self._clock.monotonic_s()
        if not self._jobs or now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_EVERY_S
        held = {lease.job_key for lease, _ in self._leases.values()}
        for key, told in list(self._jobs.items()):
            with suppress(LedgerError):  # it is asked again at the next look
                now = next((row.state for row in self._plain.jobs(key)), None)
                if now is not None and now is not told:
                    at_ms = self._clock.now_ms()
                    self._tell(Event(UNNUMBERED, at_ms, key, None, None, told, str(now)))
                self._jobs[key] = now
                if now not in _LIVE:
                    self._forget(key)
                elif key not in held:
                    del self._jobs[key]

    def _forget(self, job_key: str) -> None:
        """Leases that were lost are given back to nobody: the end of their job is theirs."""
        del self._jobs[job_key]
        self._leases = {id: held for id, held in self._leases.items() if held[0].job_key != job_key}

    def _about(self, task_id: int, state: TaskState, **fields: Any) -> None:
        lease, worker = self._leases.get(task_id, (None, ""))
        if lease is None:
            return
        name = lease.step if lease.chunk is None else f"{lease.step}[{lease.index}]"
        was = None if fields.get("progress") is None else str(state)
        self._tell(
            Event(
                UNNUMBERED,
                self._clock.now_ms(),
                lease.job_key,
                task_id,
                name,
                was,
                str(state),
                lease.fence,
                worker,
                step=lease.step,
                index=lease.index,
                **fields,
            )
        )


class _Overheard:
    """A ledger whose answers about leases are told; the rest it passes on."""

    def __init__(self, ledger: Ledger, publishing: ProgressEvents) -> None:
        self._ledger = ledger
        self._publishing = publishing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def claim(self, worker: str, capacity: int, **options: Any) -> list[Lease]:
        leases = self._ledger.claim(worker, capacity, **options)
        self._publishing.claimed(worker, leases)
        return leases

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        accepted = self._ledger.complete(done)
        for one, ok in zip(done, accepted, strict=True):
            self._publishing.ended(one.task_id, TaskState.DONE if ok else None)
        return accepted

    def fail(self, failures: Sequence[Failure]) -> list[TaskState | None]:
        states = self._ledger.fail(failures)
        for one, state in zip(failures, states, strict=True):
            self._publishing.ended(one.task_id, state, one.message)
        return states

    def release(
        self,
        leases: Iterable[tuple[int, int]],
        *,
        reason: str,
        message: str | None = None,
        **host: Any,
    ) -> int:
        held = list(leases)
        released = self._ledger.release(held, reason=reason, message=message, **host)
        for task_id, _ in held:
            now = TaskState.ABANDONED if released else None
            self._publishing.ended(task_id, now, message or reason)
        return released

    def defer(self, task_id: int, fence: int, *, token: str, timeout_s: float) -> bool:
        self._publishing.ended(task_id, None)
        return self._ledger.defer(task_id, fence, token=token, timeout_s=timeout_s)
