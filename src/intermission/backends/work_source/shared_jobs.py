"""The jobs of a shared ledger, whichever it gives tasks of: one claim for all of them.

The ledger alone decides whose turn it is. A job is opened when a lease of it comes, and stays open
for a while after its last. There is no end but a drain.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from itertools import groupby
from random import uniform
from socket import gethostname
from typing import Protocol

from intermission.backends.work_source.host_faults import EVERYTHING, HostFaults
from intermission.errors import (
    EnvironmentFault,
    IntermissionError,
    LedgerError,
    NoPipeline,
    StoreError,
    StoreUnavailable,
)
from intermission.model import Failure, Lease, Reason, TaskState
from intermission.ports.clock import Clock
from intermission.ports.ledger import Ask
from intermission.ports.notifier import Notifier
from intermission.ports.slot_protocol import Completed, HostFault
from intermission.ports.work_source import Claimed, ClaimedJob
from intermission.settings import Settings

POLL_S = 1.0
"""How often an idle worker asks, if nothing wakes it sooner."""
LEASE_SHARE = 0.85
"""How much of `lease_ttl_s` a lease lasts: what is left of it is for noticing that it ended."""
NOTICE_SHARE = 1 / 12
"""How much of it passes, while a slot is idle, between two looks for leases that ended."""
KEEP_S = 30.0
"""How long a job stays open after its last task here, because more of it may come."""
_SCRATCH = (Reason.SCRATCH_FULL, Reason.SCRATCH_FAILED)
log = logging.getLogger(__name__)


class TaskLedger(Protocol):
    """What this asks of a ledger, or of a server in its place."""

    def claim(
        self,
        worker: str,
        capacity: int,
        *,
        lease_ttl_s: float,
        host: str = "",
        offers: Collection[str] = (),
        runs: Collection[str] | None = None,
        begin: bool = True,
    ) -> list[Lease]: ...

    def fail(self, failures: Sequence[Failure]) -> Sequence[TaskState | None]: ...

    def release(
        self,
        leases: Iterable[tuple[int, int]],
        *,
        reason: str,
        message: str | None = None,
        host: str | None = None,
        until_s: float = 0.0,
    ) -> int: ...

    def rescue(self) -> int: ...


class OpenedJob(ClaimedJob, Protocol):
    """A job whose resources are closed when it gave nothing for a while."""

    @property
    def resources(self) -> ExitStack: ...


class SharedJobs:
    """A work source for a fleet. `open_job` opens the job with a key; it may raise."""

    is_shared = True
    has_more = True

    def __init__(
        self,
        ledger: TaskLedger,
        open_job: Callable[[str], OpenedJob],
        worker: str,
        settings: Settings,
        clock: Clock,
        notifiers: Sequence[Notifier] = (),
        *,
        runs: Collection[str] | None = None,
        host: str | None = None,
        self_test: Callable[[], None] = lambda: None,
    ) -> None:
        """`runs` is the code there is for jobs here, as jobs name it; None for any.

        `self_test` raises `EnvironmentFault` if this host is fit for nothing.
        """
        self._ledger = ledger
        self._open_job = open_job
        self._worker = worker
        self._settings = settings
        self._clock = clock
        self.wakes = notifiers
        self.lease_ttl_s = settings.lease_ttl_s * LEASE_SHARE
        self._notice_s = min(settings.lease_ttl_s * NOTICE_SHARE, settings.renew_every_s)
        self.ask_at_s = 0.0
        self._looked_s = -settings.lease_ttl_s
        self._runs = runs
        self._host = host or gethostname()
        self._faults = HostFaults(self_test)
        self._open: dict[str, OpenedJob] = {}
        """By the key of the job."""
        self._used_s: dict[str, float] = {}
        """By the same, when it last had something to do."""

    def ask_soon(self) -> None:
        self.ask_at_s = 0.0

    def claim(self, room: int, busy: Collection[str], *, begin: bool = True) -> list[Claimed]:
        now_s = self._clock.monotonic_s()
        self._look_for_lost(now_s, room)
        self._close_unused(now_s, busy)
        paused = self._faults.paused(now_s)
        if room <= 0 or now_s < self.ask_at_s or EVERYTHING in paused:
            return []
        ask = self._ask(room, begin, paused)
        leases = self._ledger.claim(
            ask.worker,
            ask.capacity,
            lease_ttl_s=ask.lease_ttl_s,
            host=ask.host,
            offers=ask.offers,
            runs=ask.runs,
            begin=ask.begin,
        )
        if len(leases) < room:  # unless a task ends before: that may unblock others
            self.ask_at_s = now_s + POLL_S * uniform(0.8, 1.2)
        else:  # there may be more than one worker can take
            self._notify()
        claimed: list[Claimed] = []
        for job_key, group in groupby(leases, lambda lease: lease.job_key):
            claimed += self._accept(job_key, list(group), now_s)
        return claimed

    def _ask(self, room: int, begin: bool, paused: Collection[str] = ()) -> Ask:
        return Ask(
            self._worker,
            room,
            self.lease_ttl_s,
            host=self._host,
            offers=self._settings.can,
            runs=None if self._runs is None else set(self._runs).difference(paused),
            begin=begin,
        )

    def complete(
        self, job: ClaimedJob, done: Sequence[tuple[Lease, Completed]], room: int
    ) -> list[Claimed]:
        # A host that leaves anything alone asks by `claim`, which looks whether it still must.
        ask = None if room <= 0 or self._faults.has_pauses else self._ask(room, begin=True)
        return [Claimed(lease, job) for lease in job.complete(done, ask)]

    def _look_for_lost(self, now_s: float, room: int) -> None:
        """Put back what vanished workers held: soon where a slot is idle, for only that helps."""
        wait_s = self._notice_s if room > 0 else self._settings.renew_every_s
        if now_s - self._looked_s < wait_s:
            return
        self._looked_s = now_s
        if self._ledger.rescue():
            self.ask_at_s = 0.0

    def _accept(self, job_key: str, leases: list[Lease], now_s: float) -> list[Claimed]:
        try:
            opened = self._open.get(job_key) or self._open_job(job_key)
        except LedgerError:
            raise
        except (EnvironmentFault, NoPipeline) as e:
            self._refuse(job_key, leases, _opening_fault(leases[0], e))
            return []
        except IntermissionError as e:
            log.warning("job %s cannot be worked on: %s", job_key[:10], e)
            self._ledger.fail(
                [
                    Failure(one.task_id, one.fence, type(e).__name__, str(e), not e.retryable)
                    for one in leases
                ]
            )
            return []
        self._open[job_key] = opened
        self._used_s[job_key] = now_s
        return [Claimed(lease, opened) for lease in leases]

    def refuse(self, job: ClaimedJob, leases: Sequence[Lease], fault: HostFault) -> None:
        self._refuse(job.job.code, leases, fault)

    def _refuse(self, kind: str, leases: Sequence[Lease], fault: HostFault) -> None:
        """No attempt is used. Others get the task; this host gets nothing of its kind for a while
        when that happens twice in a row, because then it is surely not the one task."""
        kind = EVERYTHING if fault.reason in _SCRATCH else kind
        wait_s = self._faults.happened(kind, fault.message, self._clock.monotonic_s())
        is_away = fault.reason is Reason.STORE_AWAY
        self._ledger.release(
            [(one.task_id, one.fence) for one in leases],
            reason=fault.reason,
            message=f"{fault.message} {fault.remedy}".strip(),
            host=None if is_away else self._host,
            until_s=wait_s,
        )

    def _close_unused(self, now_s: float, busy: Collection[str]) -> None:
        """Jobs that gave this worker nothing for a while; the ledger knows how they are."""
        for key, opened in list(self._open.items()):
            if opened.name in busy:
                self._used_s[key] = now_s
            elif now_s - self._used_s[key] > KEEP_S:
                del self._open[key], self._used_s[key]
                opened.resources.close()

    def finished(self, job: ClaimedJob, step: str) -> None:
        self.ask_at_s = 0.0
        self._faults.went_well(job.job.code)
        if any(edge.upstream == step for spec in job.job.steps for edge in spec.edges):
            self._notify()

    def _notify(self) -> None:
        for notifier in self.wakes:
            notifier.notify()

    def leave(self, reason: str | None) -> None:
        """The jobs go on elsewhere, so nothing is said of them."""

    def close(self) -> None:
        for opened in self._open.values():
            opened.resources.close()


def _opening_fault(lease: Lease, e: EnvironmentFault | NoPipeline) -> HostFault:
    """Why this host cannot open a job."""
    match e:
        case NoPipeline():
            reason = Reason.NO_PIPELINE
        case StoreUnavailable():
            reason = Reason.STORE_AWAY
        case StoreError():
            reason = Reason.STORE_UNREACHABLE
        case _:
            reason = Reason.HOST_FAULT
    return HostFault(lease.task_id, e.message, e.remedy, e.exit_code, reason)
