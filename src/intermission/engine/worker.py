"""The worker: claims tasks, hands them to slots, records how they end, and drains when asked.

One loop in one thread: hand out what there is, wait until somebody speaks, record what was
said, kill what must not go on. Leases are renewed by the keeper beside it. A worker may work
on several jobs in several workspaces at once, oldest first.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import compress
from typing import Any

from intermission.engine import completion
from intermission.engine.drain import Drain
from intermission.engine.gc_tuning import rarely_collected
from intermission.engine.lease_renewer import HeldLease, LeaseRenewer
from intermission.engine.open_job import OpenJob
from intermission.engine.outcome import (
    CorruptInput,
    Deferral,
    Ends,
    Failed,
    HostFault,
    Progressed,
    Trouble,
)
from intermission.engine.reaper import Reaper
from intermission.engine.slots import Ended, Slot, Slots
from intermission.engine.workspace import alive, bury, dead, worker_name
from intermission.errors import CorruptArtifact, EnvironmentFault, IntermissionError
from intermission.model import JobState, Lease, StepSpec
from intermission.ports.clock import Clock, SystemClock
from intermission.settings import Settings
from intermission.telemetry import reached

POLL_S = 0.25
CANCEL_GRACE_S = 5.0
RECALL_S = 1.0
"""How long tasks may wait behind one that was expected to be short."""
OPEN_MAX = 32
"""Assignments open at a time; each has two connections to its ledger and a lock."""
_NO_MORE = object()


class Worker:
    """Runs assignments to their end. Create the reaper before anything else."""

    def __init__(
        self,
        reaper: Reaper,
        settings: Settings,
        *,
        clock: Clock | None = None,
        on_tick: Callable[[], None] = lambda: None,
        on_end: Callable[[OpenJob], None] = lambda _: None,
    ) -> None:
        self.name = worker_name()
        self._reaper = reaper
        self._slots = Slots(reaper, settings.slots)
        self._settings = settings
        self._clock = clock or SystemClock()
        self._on_tick = on_tick
        self._on_end = on_end
        self._open: dict[str, OpenJob] = {}
        self._fault: EnvironmentFault | None = None
        self._drain = Drain(self._clock, settings.drain_s)
        self._more = True
        """Whether assignments may be left that were not taken on."""
        self._later = False
        """Whether none of them can be taken on at the moment."""
        self._rescued_s = 0.0
        self._lost: deque[tuple[str, HeldLease]] = deque()
        self._cancelled: deque[tuple[str, HeldLease]] = deque()
        self._renewer = LeaseRenewer(
            self.name,
            self._clock,
            lease_ttl_s=settings.lease_ttl_s,
            renew_every_s=settings.renew_every_s,
            on_lost=self._lease_lost,
            on_cancelled=lambda name, held: self._cancelled.append((name, held)),
        )

    def run(self, open_jobs: Iterator[OpenJob | None]) -> str | None:
        """Work until every assignment has ended. The reason, if a drain came first.

        None in place of an assignment means that there is none to take on at the moment.

        Raises `EnvironmentFault` when the machine cannot go on; progress is saved then too.
        """
        with self._drain.listening() as wake, rarely_collected():
            self._renewer.start()
            try:
                while self._take_on(open_jobs) or self._slots.busy:
                    self._dispatch()
                    self._wait(wake)
                    self._enforce()
                    self._on_tick()
                self._leave()
            finally:
                self._renewer.stop()
                self._reaper.close()
                for opened in self._open.values():
                    opened.resources.close()
        if self._fault is not None:
            raise self._fault
        return self._drain.reason

    def drain(self, reason: str, budget_s: float | None = None) -> None:
        """Stop claiming; finish what can finish in time; give the rest back. Twice: at once.

        For any thread. `budget_s` takes the place of `drain_s`, and never lengthens a drain.
        """
        self._drain.ask(reason, budget_s)

    @property
    def drain_reason(self) -> str | None:
        """Why this worker is draining, once it is."""
        return self._drain.reason

    def _take_on(self, open_jobs: Iterator[OpenJob | None]) -> bool:
        """Open assignments until the slots have enough to do; False when none is left."""
        while self._more and self._drain.reason is None and not self._fed():
            opened = next(open_jobs, _NO_MORE)
            self._more = opened is not _NO_MORE
            self._later = opened is None
            if not isinstance(opened, OpenJob):
                break
            opened.resources.enter_context(alive(opened.workspace, self.name))
            self._renewer.open(opened.name, opened.workspace)
            self._open[opened.name] = opened
            self._rescue(opened)
        return self._drain.reason is None and (bool(self._open) or self._more)

    def _fed(self) -> bool:
        if self._slots.idle <= 0:
            return True
        now_s = self._clock.monotonic_s()
        some_ready = any(now_s >= one.idle_until_s for one in self._open.values())
        return some_ready or len(self._open) >= OPEN_MAX

    def _rescue(self, opened: OpenJob) -> None:
        gone = dead(opened.workspace)
        opened.ledger.rescue(gone)
        bury(opened.workspace, gone)

    def _dispatch(self) -> None:
        """Give every idle slot a batch, claiming what is missing."""
        if self._drain.reason is not None:
            return
        now_s = self._clock.monotonic_s()
        if now_s - self._rescued_s > self._settings.renew_every_s:
            self._rescued_s = now_s
            for opened in self._open.values():
                self._rescue(opened)
        for opened in list(self._open.values()):
            if self._slots.idle <= 0:
                return
            if now_s >= opened.idle_until_s:
                self._claim(opened)
            while self._slots.idle > 0 and (batch := opened.next_batch(self._has_room)):
                slot = self._slots.take()
                self._slots.send(slot, opened.orders(self.name, self._settings), batch, now_s)

    def _claim(self, opened: OpenJob) -> None:
        ready = len(opened.ready(self._has_room))
        wanted = self._slots.idle * opened.batch_size() - ready
        if wanted <= 0:
            return
        asked_at_s = self._clock.monotonic_s()
        leases = opened.ledger.claim(
            self.name,
            wanted,
            lease_ttl_s=self._settings.lease_ttl_s,
            can=self._settings.can,
            jobs=[opened.job.key],
        )
        reached("after-claim")
        deadline_s = asked_at_s + self._settings.lease_ttl_s
        self._renewer.hold(
            opened.name,
            [HeldLease(lease.task_id, lease.fence, deadline_s, asked_at_s) for lease in leases],
        )
        opened.backlog.extend(leases)
        if not leases and not ready:
            self._nothing_claimed(opened)

    def _has_room(self, spec: StepSpec) -> bool:
        """A step's limit holds over every source: what it protects, they share."""
        return spec.concurrency is None or spec.concurrency > sum(
            slot.busy and slot.first.step == spec.name for slot in self._slots
        )

    def _nothing_claimed(self, opened: OpenJob) -> None:
        """Everything is finished, held by somebody, waiting for its time, or blocked."""
        busy = {slot.orders for slot in self._slots if slot.busy}
        working = opened.backlog or opened.name in busy
        if not working and opened.has_ended():
            self._end(opened)
        else:
            opened.idle_until_s = self._clock.monotonic_s() + POLL_S

    def _end(self, opened: OpenJob) -> None:
        self._on_end(opened)
        del self._open[opened.name]
        self._renewer.close(opened.name)
        opened.resources.close()

    def _wait(self, wake: int) -> None:
        """Sleep until a slot speaks, a slot ends or a signal comes; record what was said."""
        by_fd = {slot.connection.fileno(): slot for slot in self._slots}
        through = not self._open and not self._slots.busy and not self._more
        timeout_s = 0.0 if through or self._could_dispatch() else POLL_S
        ready = self._listen([*by_fd, self._reaper, wake], timeout_s)
        if wake in ready:
            os.read(wake, 512)
        for fd, slot in by_fd.items():
            if fd in ready:
                self._record(slot)
        if self._reaper in ready:
            self._drop_lost()  # a slot that died of a lost lease has not crashed
            for slot, how in self._slots.ended():
                self._bury(slot, how)

    def _listen(self, readers: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        return select.select(readers, [], [], timeout_s)[0]

    def _could_dispatch(self) -> bool:
        if self._drain.reason is not None or self._slots.idle <= 0:
            return False
        if self._more and not self._later and not self._fed():
            return True
        now_s = self._clock.monotonic_s()
        return any(
            now_s >= one.idle_until_s or one.ready(self._has_room) for one in self._open.values()
        )

    def _record(self, slot: Slot) -> None:
        """Write what a slot said into the ledger."""
        opened = self._open.get(slot.orders)
        said = self._slots.hear(slot)
        if opened is None:
            return
        now_s = self._clock.monotonic_s()
        finished: list[Ended] = []
        for one in said:
            if isinstance(one, Progressed):
                self._progressed(opened, one)
            elif isinstance(one, Ends):
                finished += slot.finished(one, now_s)
            elif (lease := slot.answered([one.task_id], now_s)[0]) is not None:
                self._record_trouble(opened, lease, one)
        if finished:
            self._record_finished(opened, finished)

    def _progressed(self, opened: OpenJob, said: Progressed) -> None:
        self._renewer.progress(opened.name, said.task_id, said.fraction)

    def _record_finished(self, opened: OpenJob, finished: Sequence[Ended]) -> None:
        """Write into the ledger that tasks of one step ended well."""
        leases = [lease for lease, *_ in finished]
        try:
            accepted = completion.complete(
                opened.ledger,
                opened.store,
                opened.job,
                [(lease, done) for lease, done, _, _ in finished],
                opened.workspace.folder / "scratch",
            )
        except CorruptArtifact as e:  # a plan's result: what has a receipt is adopted later
            lost = {e.task_key: [e.key]}
            completion.invalidate(opened.ledger, opened.store, opened.job, lost, str(e))
            self._give_back(opened, leases, str(e))
            return
        opened.idle_until_s = 0.0
        self._renewer.let_go(opened.name, [lease.task_id for lease in leases])
        stats, step = opened.stats, leases[0].step
        kept = finished if all(accepted) else list(compress(finished, accepted))
        executed_s = [took_s for _, done, took_s, _ in kept if not done.adopted]
        stats.finished(step, executed_s, len(kept) - len(executed_s), leases[0].chunk is not None)
        stats.warnings += [f"{step}: {text}" for *_, warnings in kept for text in warnings]

    def _record_trouble(self, opened: OpenJob, lease: Lease, outcome: Trouble) -> None:
        ledger, job, delays_s = opened.ledger, opened.job, self._settings.retry_delays_s
        held = (lease.task_id, lease.fence)
        match outcome:
            case Failed():
                (state,) = ledger.fail([completion.failure(job, lease, outcome, delays_s)])
                if state is not None:  # else the lease was somebody else's by then
                    opened.stats.failed(lease.step, outcome.message)
            case Deferral(token=token, timeout_s=timeout_s):
                ledger.defer(*held, token=token, timeout_s=timeout_s)
            case CorruptInput():
                lost = {outcome.input_key: [outcome.file_key]}
                completion.invalidate(ledger, opened.store, job, lost, outcome.message)
                # Already blocked by the spoil, unless somebody else had noticed before.
                ledger.release([held], reason=outcome.message)
            case HostFault():
                ledger.release([held], reason=outcome.message)
                if self._fault is None:
                    self._fault = EnvironmentFault(outcome.message, remedy=outcome.remedy)
                    self._fault.exit_code = outcome.exit_code
                    self.drain(outcome.message)
        self._renewer.let_go(opened.name, [lease.task_id])
        opened.idle_until_s = 0.0

    def _bury(self, slot: Slot, how: str) -> None:
        """A slot ended. What it still held failed with it, unless we killed it for a reason."""
        self._record(slot)
        slot.close()
        opened = self._open.get(slot.orders)
        if opened is None or not slot.batch:
            return
        leases = list(slot.batch.values())
        if slot.verdict == "timeout":
            timeout_s = opened.job.step(slot.first.step).timeout_s
            message = f"{slot.first.step} ran longer than its time-out of {timeout_s:g} s"
            first = leases.pop(0)
            outcome = Failed(first.task_id, first.fence, "TimedOut", message, False)
            self._record_trouble(opened, first, outcome)
        if slot.verdict:
            self._give_back(opened, leases, slot.verdict)
            return
        for lease in leases:
            died = Failed(lease.task_id, lease.fence, "SlotDied", how, False)
            self._record_trouble(opened, lease, died)

    def _give_back(self, opened: OpenJob, leases: list[Lease], reason: str) -> None:
        reached("before-release")
        held = [(lease.task_id, lease.fence) for lease in leases]
        opened.ledger.release(held, reason=reason)
        self._renewer.let_go(opened.name, [lease.task_id for lease in leases])
        opened.idle_until_s = 0.0

    def kill_work(self) -> None:
        """For any thread: kill every task that runs, now; then drain. Their leases are lost."""
        for slot in self._slots:
            self._slots.kill_now(slot)
        self._drain.ask("the workspace was lost", 0.0)

    def _lease_lost(self, name: str, held: HeldLease) -> None:
        """Called by the keeper: kill the work at once, whatever this thread is doing."""
        self._lost.append((name, held))  # first, so that its end is not taken for a crash
        if (slot := self._slots.running(name, held.task_id)) is not None:
            self._slots.kill_now(slot)

    def _drop_lost(self) -> None:
        while self._lost:
            name, held = self._lost.popleft()
            slot = self._slots.running(name, held.task_id)
            if slot is not None:
                self._slots.kill(slot, "its lease was lost")
            elif name in self._open:
                backlog = self._open[name].backlog
                self._open[name].backlog = deque(
                    lease for lease in backlog if lease.task_id != held.task_id
                )

    def _enforce(self) -> None:
        """Kill what ran too long, lost its lease, is no longer wanted, or cannot finish."""
        self._renewer.check()
        self._drop_lost()
        now_s = self._clock.monotonic_s()
        while self._cancelled:
            name, held = self._cancelled.popleft()
            slot = self._slots.running(name, held.task_id)
            if slot is not None:
                slot.cancel(held.task_id)
                slot.verdict = "the job was cancelled"
                slot.deadline_s = now_s + CANCEL_GRACE_S
        for slot in self._slots:
            if not slot.busy or slot.killed:
                continue
            if slot.deadline_s is not None and now_s >= slot.deadline_s:
                self._slots.kill(slot, slot.verdict or "timeout")
            elif self._drain.reason is not None and not self._can_finish(slot, now_s):
                self._slots.kill(slot, self._drain.reason)
            elif len(slot.batch) > 1 and now_s - slot.started_s > RECALL_S:
                self._open[slot.orders].backlog.extendleft(reversed(slot.recall()))

    def _can_finish(self, slot: Slot, now_s: float) -> bool:
        """Whether what a slot runs is expected to end before the drain must."""
        mean_s = self._open[slot.orders].stats.mean_s(slot.first.step)
        expected_s = now_s if mean_s is None else slot.started_s + mean_s
        return max(now_s, expected_s) < self._drain.deadline_s

    def _leave(self) -> None:
        """After a drain: give back what is still held, and say why the jobs are unfinished."""
        for opened in list(self._open.values()):
            # A ledger that cannot be written now loses nothing: the leases end by themselves.
            with suppress(IntermissionError):
                self._give_back(opened, list(opened.backlog), self._drain.reason or "")
                opened.ledger.mark(opened.job.key, JobState.DRAINING, reason=self._drain.reason)
            self._end(opened)
