"""A worker of a fleet: it claims from a shared ledger, whatever job that gives it tasks of.

The loop, the slots, the leases and the drain are the engine's. What differs is where work comes
from: one claim for all jobs, so that the ledger alone decides whose turn it is; and that there is
no end but a drain.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from random import uniform
from typing import Any

from intermission.engine.lease_renewer import HeldLease
from intermission.engine.open_job import OpenJob
from intermission.engine.outcome import CorruptInput, Failed, HostFault, Progressed, Trouble
from intermission.engine.reaper import Reaper
from intermission.engine.slots import Ended
from intermission.engine.worker import Worker
from intermission.errors import IntermissionError, LedgerError, LedgerRefused
from intermission.model import Failure, Lease
from intermission.ports.clock import Clock
from intermission.ports.ledger import Ledger
from intermission.ports.notifier import Notifier
from intermission.settings import Settings
from intermission.telemetry import reached

POLL_S = 1.0
"""How often an idle worker asks, if nothing wakes it sooner."""
AWAY_S = 5.0
"""How long to leave a ledger alone that did not answer."""
HOARD_S = 1.0
"""How long a task may wait here for a slot while other workers may have one."""
LEASE_SHARE = 0.85
"""How much of `lease_ttl_s` a lease lasts: what is left of it is for noticing that it ended."""
NOTICE_SHARE = 1 / 12
"""How much of it passes, while a slot is idle, between two looks for leases that ended."""
KEEP_S = 30.0
"""How long a job stays open after its last task here, because more of it may come."""
log = logging.getLogger(__name__)


class FleetWorker(Worker):
    """Runs what a shared ledger has, until it is asked to stop."""

    def __init__(
        self,
        reaper: Reaper,
        settings: Settings,
        ledger: Ledger,
        open_job: Callable[[str], OpenJob],
        *,
        notifiers: Sequence[Notifier] = (),
        clock: Clock | None = None,
        on_tick: Callable[[], None] = lambda: None,
        on_progress: Callable[[int, float], None] = lambda task_id, fraction: None,
    ) -> None:
        """`open_job` makes the assignment of the job with a key; it may raise."""
        leased = settings.model_copy(update={"lease_ttl_s": settings.lease_ttl_s * LEASE_SHARE})
        super().__init__(reaper, leased, clock=clock, on_tick=on_tick)
        self._notice_s = min(settings.lease_ttl_s * NOTICE_SHARE, settings.renew_every_s)
        self._on_progress = on_progress
        self._notifiers = notifiers
        self._ledger = ledger
        self._open_job = open_job
        self._ask_at_s = 0.0
        self._looked_s = -settings.lease_ttl_s
        self._idle_s = 0.0
        self._used_s: dict[str, float] = {}
        """By assignment, when it last had something to do."""
        self._unwritten: deque[Callable[[], None]] = deque()
        """Changes of a ledger that did not answer, oldest first."""

    def work(self) -> str | None:
        """Work until a drain; the reason for it."""
        return self.run(iter(()))

    @property
    def busy(self) -> int:
        """How many slots are at work; for any thread."""
        return self._settings.slots - max(0, self._slots.idle)

    def _take_on(self, open_jobs: Iterator[OpenJob | None]) -> bool:
        if self._drain.reason is not None:
            return False
        now_s = self._clock.monotonic_s()
        try:
            if self._unwritten and now_s >= self._ask_at_s:
                self._catch_up()
            self._look_for_lost(now_s)
            if now_s >= self._ask_at_s and self._slots.idle > 0:
                self._claim_any(now_s)
            self._share(now_s)
        except LedgerError as e:  # what runs goes on as long as its leases do
            self._leave_alone(e)
        if not self._unwritten:
            self._close_unused(now_s)
        return True

    def _look_for_lost(self, now_s: float) -> None:
        """Put back what vanished workers held: soon where a slot is idle, for only that helps."""
        wait_s = self._notice_s if self._slots.idle > 0 else self._settings.renew_every_s
        if now_s - self._looked_s < wait_s:
            return
        self._looked_s = now_s
        if self._ledger.rescue():
            self._ask_at_s = 0.0

    def _leave_alone(self, e: LedgerError) -> None:
        if isinstance(e, LedgerRefused):  # our key, or our version: waiting does not help
            self._fault = self._fault or e
            self.drain(e.message)
            return
        log.warning("%s", e)
        self._ask_at_s = self._clock.monotonic_s() + AWAY_S

    def _write(self, change: Callable[[], None]) -> None:
        """Change the ledger now, or else when it answers again; its leases are kept meanwhile."""
        self._unwritten.append(change)
        if len(self._unwritten) > 1:
            return
        try:
            self._catch_up()
        except LedgerError as e:
            self._leave_alone(e)

    def _catch_up(self) -> None:
        while self._unwritten:
            change = self._unwritten.popleft()
            try:
                change()
            except LedgerError:
                self._unwritten.appendleft(change)
                raise

    def _share(self, now_s: float) -> None:
        """Give back what was claimed for short tasks, when long ones have taken all slots."""
        if self._slots.idle > 0:
            self._idle_s = now_s
        elif now_s - self._idle_s > HOARD_S:
            for opened in self._open.values():
                if opened.backlog:
                    self._give_back(opened, list(opened.backlog), "no slot was free")
                    opened.backlog.clear()

    def _claim_any(self, asked_at_s: float) -> None:
        opened = list(self._open.values())
        waiting = sum(len(one.ready(self._has_room)) for one in opened)
        size = max((one.batch_size() for one in opened), default=1)
        wanted = self._slots.idle * size - waiting
        if wanted <= 0:
            return
        leases = self._ledger.claim(
            self.name,
            wanted,
            lease_ttl_s=self._settings.lease_ttl_s,
            can=self._settings.can,
        )
        reached("after-claim")
        if len(leases) < wanted:  # unless a task ends before: that may unblock others
            self._ask_at_s = asked_at_s + POLL_S * uniform(0.8, 1.2)
        else:  # there may be more than one worker can take
            self._ring()
        for job_key, group in groupby(leases, lambda lease: lease.job_key):
            self._accept(job_key, list(group), asked_at_s)

    def _accept(self, job_key: str, leases: list[Lease], asked_at_s: float) -> None:
        opened = next((one for one in self._open.values() if one.job.key == job_key), None)
        try:
            opened = opened or self._opened(job_key)
        except LedgerError:
            raise
        except IntermissionError as e:
            log.warning("job %s cannot be worked on here: %s", job_key[:10], e)
            delay_s = self._settings.retry_delays_s[0]
            self._ledger.fail(
                [
                    Failure(one.task_id, one.fence, type(e).__name__, str(e), False, delay_s)
                    for one in leases
                ]
            )
            return
        deadline_s = asked_at_s + self._settings.lease_ttl_s
        self._renewer.hold(
            opened.name,
            [HeldLease(lease.task_id, lease.fence, deadline_s, asked_at_s) for lease in leases],
        )
        opened.backlog.extend(leases)

    def _opened(self, job_key: str) -> OpenJob:
        opened = self._open_job(job_key)
        self._renewer.open(opened.name, opened.workspace)
        self._open[opened.name] = opened
        return opened

    def _close_unused(self, now_s: float) -> None:
        """Jobs that gave this worker nothing for a while; the ledger knows how they are."""
        busy = {slot.orders for slot in self._slots if slot.busy}
        for name, opened in list(self._open.items()):
            if opened.backlog or name in busy:
                self._used_s[name] = now_s
            elif now_s - self._used_s.setdefault(name, now_s) > KEEP_S:
                del self._used_s[name]
                self._end(opened)

    def _claim(self, opened: OpenJob) -> None:
        """Nothing: what a job has is claimed with everybody else's."""

    def _rescue(self, opened: OpenJob) -> None:
        """Nothing: the ledger is rescued as a whole."""

    def _could_dispatch(self) -> bool:
        if self._drain.reason is not None or self._slots.idle <= 0:
            return False
        return self._clock.monotonic_s() >= self._ask_at_s or any(
            one.ready(self._has_room) for one in self._open.values()
        )

    def _progressed(self, opened: OpenJob, said: Progressed) -> None:
        super()._progressed(opened, said)
        self._on_progress(said.task_id, said.fraction)

    def _record_trouble(self, opened: OpenJob, lease: Lease, outcome: Trouble) -> None:
        if isinstance(outcome, Failed | CorruptInput | HostFault):
            log.warning("%s", outcome.message, extra=_about(lease))
        self._write(partial(super()._record_trouble, opened, lease, outcome))

    def _give_back(self, opened: OpenJob, leases: list[Lease], reason: str) -> None:
        self._write(partial(super()._give_back, opened, leases, reason))

    def _record_finished(self, opened: OpenJob, finished: Sequence[Ended]) -> None:
        self._write(partial(self._finish, opened, finished))

    def _finish(self, opened: OpenJob, finished: Sequence[Ended]) -> None:
        super()._record_finished(opened, finished)
        if log.isEnabledFor(logging.INFO):
            for lease, done, took_s, _ in finished:
                took = {"took_s": round(took_s, 3), "adopted": done.adopted}
                log.info("done", extra=_about(lease) | took)
        self._ask_at_s = 0.0
        needed = {edge.upstream for spec in opened.job.steps for edge in spec.edges}
        if finished[0][0].step in needed:  # they are of one step
            self._ring()

    def _listen(self, readers: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        notifiers = self._notifiers if self._slots.idle > 0 else ()
        ready = super()._listen([*readers, *notifiers], timeout_s)
        for notifier in notifiers:
            if notifier in ready:
                notifier.hear()  # before the ledger is asked: a ring meanwhile is heard then
                self._ask_at_s = 0.0
        return ready

    def _ring(self) -> None:
        for notifier in self._notifiers:
            notifier.notify()

    def _leave(self) -> None:
        """Give back what was not begun. The jobs go on elsewhere, so nothing is said of them."""
        with suppress(IntermissionError):  # a ledger that is away loses nothing: leases end
            self._catch_up()
        for opened in list(self._open.values()):
            self._give_back(opened, list(opened.backlog), self._drain.reason or "")
            self._end(opened)


def _about(lease: Lease) -> dict[str, Any]:
    """What a line of the log is about."""
    task = lease.step if lease.chunk is None else f"{lease.step}[{lease.index}]"
    return {"job": lease.job_key[:10], "task": task, "attempt": lease.attempt}
