"""The lease renewer: a thread beside the work that renews leases and notices lost ones.

It has its own connection to whoever gave the leases, so that nothing the worker waits for can
stop a renewal. A lease it cannot renew in time is given up by killing the slot that works on it,
before the ledger may give the task to somebody else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from intermission.errors import LedgerError
from intermission.model import Heartbeat, Lease, Reason
from intermission.ports.clock import Clock
from intermission.ports.work_source import ClaimedJob, Renewals
from intermission.telemetry import reached

TICK_S = 1.0
MARGIN = 0.2
"""The last part of a lease's life in which work that could not be renewed is killed."""
UNUSED_MAX = 4
"""Connections kept open although no lease is held over them now."""


@dataclass(slots=True)
class HeldLease:
    """A lease this worker holds. The deadline is ours, monotonic, and starts before the claim."""

    task_id: int
    fence: int
    deadline_s: float
    beat_at_s: float
    job_key: str = ""
    begun: bool = True
    """False while it waits for a slot, or for its turn in a batch."""
    progress: float = 0.0
    beat_progress: float = 0.0


Told = Callable[[str, HeldLease, Reason], None]
"""Hears, in the renewer's thread, that a lease of a job has ended: lost, or its job cancelled."""


class LeaseRenewer:
    """Renews what it is told to hold, until it is told to let go."""

    def __init__(
        self,
        worker: str,
        clock: Clock,
        *,
        lease_ttl_s: float,
        renew_every_s: float,
    ) -> None:
        self._worker = worker
        self._clock = clock
        self._lease_ttl_s = lease_ttl_s
        self._renew_every_s = renew_every_s
        self._tell: Told = lambda name, held, reason: None
        self._lock = threading.Lock()
        self._held: dict[str, dict[int, HeldLease]] = {}
        """By the name of the job, by task."""
        self._openers: dict[str, Callable[[], Renewals]] = {}
        """By the name of the job, where its leases are renewed."""
        self._renewals: dict[Callable[[], Renewals], Renewals] = {}
        """By how they are opened, last used last: the jobs of a fleet share one."""
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-renewer", daemon=True)

    def report_to(self, tell: Told) -> None:
        self._tell = tell

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def hold(
        self, job: ClaimedJob, leases: Iterable[Lease], asked_at_s: float, *, begun: bool = True
    ) -> None:
        """Renew these leases of a job; `asked_at_s` is when they were asked for."""
        times = asked_at_s + self._lease_ttl_s, asked_at_s
        with self._lock:
            self._openers[job.name] = job.open_renewals
            self._held.setdefault(job.name, {}).update(
                (one.task_id, HeldLease(one.task_id, one.fence, *times, one.job_key, begun))
                for one in leases
            )

    def begin(self, name: str, task_ids: Iterable[int]) -> None:
        """These tasks run from now on: a tick says so soon, of those that have not ended."""
        due_s = self._clock.monotonic_s() + TICK_S - self._renew_every_s
        with self._lock:
            held = self._held.get(name, {})
            for one in (held[id] for id in task_ids if id in held):
                if not one.begun:
                    one.begun, one.beat_at_s = True, min(due_s, one.beat_at_s)

    def jobs(self) -> set[str]:
        """The names of the jobs that leases are held of."""
        with self._lock:
            return set(self._held)

    def progress(self, name: str, task_id: int, fraction: float) -> None:
        with self._lock:
            if task_id in self._held.get(name, {}):
                self._held[name][task_id].progress = fraction

    def let_go(self, name: str, task_ids: Iterable[int]) -> None:
        with self._lock:
            for task_id in task_ids:
                self._let_go(name, task_id)

    def _let_go(self, name: str, task_id: int) -> None:
        held = self._held.get(name, {})
        held.pop(task_id, None)
        if not held:
            self._held.pop(name, None)
            self._openers.pop(name, None)

    def check(self) -> None:
        """Raise here what ended the renewer's thread, so that the worker does not go on alone."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.wait(min(TICK_S, self._renew_every_s)):
                self.tick()
        except BaseException as e:
            self._error = e
        finally:
            for renewals in self._renewals.values():
                renewals.close()

    def tick(self) -> None:
        """Renew what is due and give up what could not be renewed; the thread's one round."""
        self._open_new()
        self._look_for_cancelled()
        with self._lock:
            work = {name: self._due(held) for name, held in self._held.items()}
        for name, held in work.items():
            if held:
                self._renew(name, held)
                self._give_up()  # each may have taken long
        self._give_up()
        self._close_unused()

    def _look_for_cancelled(self) -> None:
        """At every tick, because people wait for it; a renewal would tell it late."""
        with self._lock:
            held = {name: list(some.values()) for name, some in self._held.items()}
        for name, some in held.items():
            with suppress(LedgerError):  # asked again at the next tick
                if self._opened(name).cancelled({one.job_key for one in some if one.job_key}):
                    for one in some:
                        self._drop(name, one, Reason.CANCELLED)

    def _due(self, held: dict[int, HeldLease]) -> list[HeldLease]:
        now = self._clock.monotonic_s()
        return [
            one
            for one in held.values()
            if now - one.beat_at_s >= self._renew_every_s
            or (one.progress != one.beat_progress and now - one.beat_at_s >= TICK_S)
        ]

    def _renew(self, name: str, due: list[HeldLease]) -> None:
        asked_at_s = self._clock.monotonic_s()
        heartbeats = [Heartbeat(one.task_id, one.fence, one.progress, one.begun) for one in due]
        reached("before-renew")
        try:
            answer = self._opened(name).renew(
                self._worker, heartbeats, lease_ttl_s=self._lease_ttl_s
            )
        except LedgerError:
            return  # asked again at the next tick; the deadlines decide how often
        for one, heartbeat in zip(due, heartbeats, strict=True):
            if one.task_id in answer.cancelled:
                self._drop(name, one, Reason.CANCELLED)
            elif one.task_id in answer.lost:
                self._drop(name, one, Reason.LEASE_LOST)
            else:
                one.deadline_s = asked_at_s + self._lease_ttl_s
                one.beat_at_s = asked_at_s
                one.beat_progress = heartbeat.progress

    def _opened(self, name: str) -> Renewals:
        with self._lock:
            opener = self._openers.get(name)
        if opener is None:
            raise LedgerError("nothing of this job is held any more.")
        renewals = self._renewals.pop(opener, None) or opener()
        self._renewals[opener] = renewals
        return renewals

    def _open_new(self) -> None:
        """At once, not at the first renewal: by then the file may be deleted or another one."""
        with suppress(LedgerError):  # asked again when there is something to renew
            for name in self.jobs():
                self._opened(name)

    def _close_unused(self) -> None:
        with self._lock:
            used = set(self._openers.values())
        unused = [opener for opener in self._renewals if opener not in used]
        for opener in unused[:-UNUSED_MAX]:
            self._renewals.pop(opener).close()

    def _give_up(self) -> None:
        limit = self._clock.monotonic_s() + self._lease_ttl_s * MARGIN
        with self._lock:
            late = [
                (name, one)
                for name, held in self._held.items()
                for one in held.values()
                if one.deadline_s < limit
            ]
        for name, one in late:
            self._drop(name, one, Reason.LEASE_LOST)

    def _drop(self, name: str, one: HeldLease, reason: Reason) -> None:
        """A task that ended meanwhile is no longer held, and not lost either."""
        with self._lock:
            known = self._held.get(name, {}).get(one.task_id)
            if known is not one:
                return
            self._let_go(name, one.task_id)
        self._tell(name, one, reason)
