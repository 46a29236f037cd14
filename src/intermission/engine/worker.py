"""The worker: claims tasks, hands them to slots, records how they end, and drains when asked.

One loop in one thread: collect what slots said, record it, hand out more. Leases are renewed
by the keeper beside it; slots are forked and killed by the guardian. A worker may work on
several jobs in several workspaces at once, oldest first.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from uuid import uuid4

from intermission.engine import record
from intermission.engine.guardian import Guardian
from intermission.engine.keeper import Held, Keeper
from intermission.engine.outcome import (
    Deferral,
    Failed,
    Faulted,
    Finished,
    Outcome,
    Progressed,
    Spoiled,
)
from intermission.engine.slot import CANCEL, Batch, Orders
from intermission.engine.tally import Tally
from intermission.engine.workspace import Workspace, alive, dead
from intermission.errors import EnvironmentFault, IntermissionError
from intermission.model import Job, JobState, Lease
from intermission.ports.clock import Clock, SystemClock
from intermission.ports.ledger import Ledger
from intermission.ports.store import Store
from intermission.settings import Settings
from intermission.telemetry import reached

POLL_S = 0.25
CANCEL_GRACE_S = 5.0
BATCH_S = 0.05
"""Tasks that together take about this long travel to a slot in one message."""
BATCH_MAX = 512

_ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


def worker_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"


@dataclass
class Assignment:
    """One job in one workspace, while this worker works on it."""

    workspace: Workspace
    job: Job
    ledger: Ledger
    store: Store
    tally: Tally
    backlog: deque[Lease] = field(default_factory=deque[Lease])
    ended: bool = False
    idle_until_s: float = 0.0

    @property
    def name(self) -> str:
        """Sources with equal content have equal jobs, each in a workspace of its own."""
        return f"{self.workspace.folder}:{self.job.key}"


@dataclass
class _Slot:
    no: int
    connection: Connection
    known: set[str] = field(default_factory=set[str])
    assignment: Assignment | None = None
    batch: dict[int, Lease] = field(default_factory=dict[int, Lease])
    started_s: float = 0.0
    deadline_s: float | None = None
    verdict: str = ""
    """Why this worker killed it: the leases then go back instead of counting as a crash."""

    @property
    def busy(self) -> bool:
        return bool(self.batch)


class Worker:
    """Runs assignments to their end. Create the guardian before anything else."""

    def __init__(
        self,
        guardian: Guardian,
        settings: Settings,
        *,
        clock: Clock | None = None,
        on_tick: Callable[[], None] = lambda: None,
        on_end: Callable[[Assignment], None] = lambda _: None,
    ) -> None:
        self.name = worker_name()
        self._guardian = guardian
        self._settings = settings
        self._clock = clock or SystemClock()
        self._on_tick = on_tick
        self._on_end = on_end
        self._slots: dict[int, _Slot] = {}
        self._next_slot = 0
        self._assignments: list[Assignment] = []
        self._locks = ExitStack()
        self._fault: EnvironmentFault | None = None
        self._drain_reason: str | None = None
        self._drain_deadline_s = 0.0
        self._rescued_s = 0.0
        self._lost: deque[Held] = deque()
        self._cancelled: deque[Held] = deque()
        self._keeper = Keeper(
            self.name,
            self._clock,
            lease_ttl_s=settings.lease_ttl_s,
            renew_every_s=settings.renew_every_s,
            on_lost=self._lease_lost,
            on_cancelled=self._cancelled.append,
        )

    def run(self, assignments: Iterator[Assignment]) -> str | None:
        """Work until every assignment has ended. The reason, if a drain came first.

        Raises `EnvironmentFault` when the machine cannot go on; progress is saved then too.
        """
        with _signals(self.drain) as wake:
            self._keeper.start()
            try:
                while self._take_on(assignments) or self._slots_busy():
                    self._dispatch()
                    self._wait(wake)
                    self._enforce()
                    self._on_tick()
                self._leave()
            finally:
                self._keeper.stop()
                self._guardian.close()
                self._locks.close()
        if self._fault is not None:
            raise self._fault
        return self._drain_reason

    def drain(self, reason: str) -> None:
        """Stop claiming; finish what can finish in time; give the rest back. Twice: at once."""
        again = self._drain_reason is not None
        self._drain_reason = self._drain_reason or reason
        budget_s = 0.0 if again else self._settings.drain_s
        self._drain_deadline_s = self._clock.monotonic_s() + budget_s

    # Taking work on

    def _take_on(self, assignments: Iterator[Assignment]) -> bool:
        """Keep enough assignments open to feed every slot; False when there is nothing left."""
        if self._drain_reason is not None:
            return False
        while not self._fed():
            assignment = next(assignments, None)
            if assignment is None:
                break
            self._open(assignment)
        return any(not assignment.ended for assignment in self._assignments)

    def _fed(self) -> bool:
        """Whether the open assignments had more work than idle slots when last asked."""
        now = self._clock.monotonic_s()
        open_ = [one for one in self._assignments if not one.ended]
        return any(now >= one.idle_until_s for one in open_) and len(open_) > 0

    def _open(self, assignment: Assignment) -> None:
        self._locks.enter_context(alive(assignment.workspace, self.name))
        self._keeper.open(assignment.name, assignment.workspace)
        self._assignments.append(assignment)
        self._rescue(assignment)

    def _rescue(self, assignment: Assignment) -> None:
        gone = dead(assignment.workspace, assignment.ledger.workers())
        assignment.ledger.rescue(gone)

    def _dispatch(self) -> None:
        """Give every idle slot a batch, claiming what is missing."""
        if self._drain_reason is not None:
            return
        now = self._clock.monotonic_s()
        if now - self._rescued_s > self._settings.renew_every_s:
            self._rescued_s = now
            for assignment in self._open_assignments():
                self._rescue(assignment)
        for assignment in self._open_assignments():
            idle = self._settings.slots - sum(slot.busy for slot in self._slots.values())
            if idle <= 0:
                return
            if now < assignment.idle_until_s:
                continue
            self._claim(assignment, idle)
            for slot in self._idle_slots(idle):
                if not assignment.backlog:
                    break
                self._send(slot, assignment, self._next_batch(assignment))

    def _open_assignments(self) -> list[Assignment]:
        return [one for one in self._assignments if not one.ended]

    def _claim(self, assignment: Assignment, idle: int) -> None:
        wanted = idle * self._batch_size(assignment) - len(assignment.backlog)
        if wanted <= 0:
            return
        asked_at_s = self._clock.monotonic_s()
        leases = assignment.ledger.claim(
            self.name,
            wanted,
            lease_ttl_s=self._settings.lease_ttl_s,
            can=self._settings.can,
            jobs=[assignment.job.key],
        )
        reached("after-claim")
        deadline_s = asked_at_s + self._settings.lease_ttl_s
        for lease in leases:
            held = Held(lease.task_id, lease.fence, deadline_s, asked_at_s)
            self._keeper.hold(assignment.name, held)
        assignment.backlog.extend(leases)
        if not assignment.backlog:
            self._nothing_claimed(assignment)

    def _nothing_claimed(self, assignment: Assignment) -> None:
        """Everything is done, held by somebody, waiting for its time, or blocked."""
        if any(slot.assignment is assignment and slot.busy for slot in self._slots.values()):
            assignment.idle_until_s = self._clock.monotonic_s() + POLL_S
            return
        (row,) = assignment.ledger.jobs(assignment.job.key)
        if row.state in _ENDED:
            self._end(assignment)
        else:
            assignment.idle_until_s = self._clock.monotonic_s() + POLL_S

    def _end(self, assignment: Assignment) -> None:
        assignment.ended = True
        self._on_end(assignment)
        self._keeper.close(assignment.name)
        assignment.ledger.close()

    def _batch_size(self, assignment: Assignment) -> int:
        mean_s = assignment.tally.shortest_mean_s()
        return 1 if mean_s is None else max(1, min(BATCH_MAX, int(BATCH_S / max(mean_s, 1e-6))))

    def _next_batch(self, assignment: Assignment) -> list[Lease]:
        """Leases that run well together: first tries of a step whose tasks are short.

        A task that was tried before runs alone, so that a crash is surely its own.
        """
        backlog = assignment.backlog
        batch = [backlog.popleft()]
        spec = assignment.job.step(batch[0].step)
        mean_s = assignment.tally.mean_s(spec.name)
        if batch[0].attempt > 1 or spec.attempts == 1 or mean_s is None:
            return batch
        size = min(BATCH_MAX, int(BATCH_S / max(mean_s, 1e-6)))
        while (
            len(batch) < size
            and backlog
            and backlog[0].step == spec.name
            and backlog[0].attempt == 1
        ):
            batch.append(backlog.popleft())
        return batch

    # Slots

    def _idle_slots(self, at_most: int) -> list[_Slot]:
        idle = [slot for slot in self._slots.values() if not slot.busy and not slot.verdict]
        while len(idle) < at_most and len(self._slots) < self._settings.slots:
            slot = _Slot(self._next_slot, self._guardian.spawn(self._next_slot))
            self._next_slot += 1
            self._slots[slot.no] = slot
            idle.append(slot)
        return idle

    def _send(self, slot: _Slot, assignment: Assignment, leases: list[Lease]) -> None:
        now = self._clock.monotonic_s()
        slot.assignment = assignment
        slot.batch = {lease.task_id: lease for lease in leases}
        slot.started_s = now
        timeout_s = assignment.job.step(leases[0].step).timeout_s
        slot.deadline_s = None if timeout_s is None else now + timeout_s
        for lease in leases:
            self._keeper.assign(assignment.name, lease.task_id, slot.no)
        with suppress(BrokenPipeError, ConnectionResetError):  # its end will be reported
            if assignment.name not in slot.known:
                slot.connection.send(self._orders(assignment))
                slot.known.add(assignment.name)
            slot.connection.send(Batch(assignment.name, leases))

    def _orders(self, assignment: Assignment) -> Orders:
        return Orders(
            name=assignment.name,
            job=assignment.job,
            open_store=assignment.workspace.open_store,
            open_outputs=assignment.workspace.open_outputs,
            folder=assignment.workspace.folder,
            worker=self.name,
            memory_bytes=self._settings.slot_memory_bytes,
            cpu_s=self._settings.slot_cpu_s,
        )

    def _slots_busy(self) -> bool:
        return any(slot.busy for slot in self._slots.values())

    def _wait(self, wake: int) -> None:
        """Sleep until a slot speaks, a slot ends or a signal comes; record what was said."""
        sources = {slot.connection.fileno(): slot for slot in self._slots.values()}
        timeout_s = POLL_S if not self._anything_to_send() else 0.0
        ready, _, _ = select.select([*sources, self._guardian, wake], [], [], timeout_s)
        if wake in ready:
            os.read(wake, 512)
        said: list[tuple[_Slot, Outcome]] = []
        for fd in ready:
            if fd in sources:
                said += self._listen(sources[fd])
        self._record(said)
        if self._guardian in ready:
            for no, status in self._guardian.ended():
                self._bury(self._slots.pop(no), status)

    def _anything_to_send(self) -> bool:
        """Whether a dispatch could do something at once."""
        if self._drain_reason is not None:
            return False
        now = self._clock.monotonic_s()
        idle = self._settings.slots > sum(slot.busy for slot in self._slots.values())
        return idle and any(now >= one.idle_until_s for one in self._open_assignments())

    def _listen(self, slot: _Slot) -> list[tuple[_Slot, Outcome]]:
        said: list[tuple[_Slot, Outcome]] = []
        try:
            while slot.connection.poll():
                message = slot.connection.recv()
                if isinstance(message, Progressed):
                    assert slot.assignment is not None
                    name = slot.assignment.name
                    self._keeper.progress(name, message.task_id, message.fraction)
                else:
                    said += [(slot, outcome) for outcome in message]
        except (EOFError, OSError):
            pass  # the guardian will say how it ended
        return said

    # Recording

    def _record(self, said: Sequence[tuple[_Slot, Outcome]]) -> None:
        finished: dict[int, list[tuple[Lease, Finished]]] = {}
        for slot, outcome in said:
            assignment = slot.assignment
            task_id = outcome.completion.task_id if isinstance(outcome, Finished) else outcome[0]
            assert assignment is not None
            lease = slot.batch.pop(task_id, None)
            if lease is None:
                continue
            slot.started_s = self._clock.monotonic_s()
            if slot.deadline_s is not None:
                timeout_s = assignment.job.step(lease.step).timeout_s
                slot.deadline_s = None if timeout_s is None else slot.started_s + timeout_s
            if isinstance(outcome, Finished):
                finished.setdefault(id(assignment), []).append((lease, outcome))
            else:
                self._record_trouble(assignment, lease, outcome)
        for assignment in self._assignments:
            if id(assignment) in finished:
                self._record_finished(assignment, finished[id(assignment)])

    def _record_finished(
        self, assignment: Assignment, finished: list[tuple[Lease, Finished]]
    ) -> None:
        done = [(lease, outcome.completion) for lease, outcome in finished]
        accepted = record.complete(
            assignment.ledger,
            assignment.store,
            assignment.job,
            done,
            assignment.workspace.folder / "scratch",
        )
        assignment.idle_until_s = 0.0
        for (lease, outcome), ok in zip(finished, accepted, strict=True):
            self._keeper.let_go(assignment.name, lease.task_id)
            if ok:
                assignment.tally.finished(lease.step, outcome.took_s, outcome.completion.adopted)

    def _record_trouble(self, assignment: Assignment, lease: Lease, outcome: Outcome) -> None:
        assignment.idle_until_s = 0.0
        ledger, job = assignment.ledger, assignment.job
        match outcome:
            case Failed():
                delays_s = self._settings.retry_delays_s
                ledger.fail([record.failure(job, lease, outcome, delays_s)])
                assignment.tally.failed(lease.step, outcome.message)
            case Deferral():
                ledger.defer(
                    outcome.task_id,
                    outcome.fence,
                    token=outcome.token,
                    timeout_s=outcome.timeout_s,
                )
            case Spoiled():
                lost = {outcome.input_key: [outcome.file_key]}
                record.spoil(ledger, assignment.store, job, lost, outcome.message)
            case Faulted():
                ledger.release([(outcome.task_id, outcome.fence)], reason=outcome.message)
                self._stop_for(EnvironmentFault(outcome.message, remedy=outcome.remedy))
            case _:
                raise AssertionError(outcome)
        self._keeper.let_go(assignment.name, lease.task_id)

    def _stop_for(self, fault: EnvironmentFault) -> None:
        if self._fault is None:
            self._fault = fault
            self.drain(fault.message)

    def _bury(self, slot: _Slot, status: int) -> None:
        """A slot ended. What it still held failed with it, unless we killed it for a reason."""
        self._record(self._listen(slot))
        slot.connection.close()
        assignment = slot.assignment
        if assignment is None or not slot.batch:
            return
        if slot.verdict == "timeout":
            self._timed_out(slot, assignment)
        elif slot.verdict:
            leases = [(lease.task_id, lease.fence) for lease in slot.batch.values()]
            reached("before-release")
            assignment.ledger.release(leases, reason=slot.verdict)
        else:
            for lease in slot.batch.values():
                died = Failed(lease.task_id, lease.fence, "SlotDied", _how(status), False)
                self._record_trouble(assignment, lease, died)
        for task_id in slot.batch:
            self._keeper.let_go(assignment.name, task_id)
        assignment.idle_until_s = 0.0

    def _timed_out(self, slot: _Slot, assignment: Assignment) -> None:
        first, *rest = slot.batch.values()
        timeout_s = assignment.job.step(first.step).timeout_s
        message = f"{first.step} ran longer than its time-out of {timeout_s} s"
        outcome = Failed(first.task_id, first.fence, "TimedOut", message, False)
        self._record_trouble(assignment, first, outcome)
        leases = [(lease.task_id, lease.fence) for lease in rest]
        assignment.ledger.release(leases, reason="a task before it timed out")

    # Enforcing

    def _lease_lost(self, held: Held) -> None:
        """Called by the keeper: kill the work at once, whatever this thread is doing."""
        if held.slot is not None:
            self._guardian.kill(held.slot)
        self._lost.append(held)

    def _enforce(self) -> None:
        """Kill what ran too long, lost its lease, is no longer wanted, or cannot finish."""
        now = self._clock.monotonic_s()
        while self._lost:
            self._drop_lost(self._lost.popleft())
        while self._cancelled:
            held = self._cancelled.popleft()
            slot = self._slots.get(held.slot) if held.slot is not None else None
            if slot is not None and held.task_id in slot.batch:
                with suppress(OSError):
                    slot.connection.send(CANCEL)
                slot.deadline_s = min(slot.deadline_s or now + CANCEL_GRACE_S, now + CANCEL_GRACE_S)
                slot.verdict = slot.verdict or "cancelled"
        for slot in self._slots.values():
            if slot.busy and slot.deadline_s is not None and now >= slot.deadline_s:
                self._kill(slot, slot.verdict or "timeout")
            if self._drain_reason is not None and slot.busy and not self._can_finish(slot, now):
                self._kill(slot, self._drain_reason)

    def _drop_lost(self, held: Held) -> None:
        for assignment in self._assignments:
            kept = [one for one in assignment.backlog if one.task_id != held.task_id]
            assignment.backlog = deque(kept)
        slot = self._slots.get(held.slot) if held.slot is not None else None
        if slot is not None and held.task_id in slot.batch:
            slot.verdict = slot.verdict or "its lease was lost"

    def _can_finish(self, slot: _Slot, now: float) -> bool:
        """Whether what a slot runs is expected to end before the drain must."""
        if now >= self._drain_deadline_s:
            return False
        assert slot.assignment is not None
        first = next(iter(slot.batch.values()))
        mean_s = slot.assignment.tally.mean_s(first.step)
        return mean_s is None or slot.started_s + mean_s < self._drain_deadline_s

    def _kill(self, slot: _Slot, verdict: str) -> None:
        slot.verdict = verdict
        slot.deadline_s = None
        self._guardian.kill(slot.no)

    def _leave(self) -> None:
        """Give back what is still held, and say why the jobs are not finished."""
        if self._drain_reason is None:
            return
        for assignment in self._open_assignments():
            leases = [(lease.task_id, lease.fence) for lease in assignment.backlog]
            reached("before-release")
            with suppress(IntermissionError):
                assignment.ledger.release(leases, reason=self._drain_reason)
                assignment.ledger.mark(
                    assignment.job.key, JobState.DRAINING, reason=self._drain_reason
                )
            self._end(assignment)


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return f"the slot was killed by {signal.Signals(number).name}{hint}"
    return f"the slot exited with status {os.WEXITSTATUS(status)}"


@contextmanager
def _signals(drain: Callable[[str], None]) -> Iterator[int]:
    """SIGTERM and SIGINT drain. Yields a file descriptor that a signal makes readable."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = {
        number: signal.signal(number, lambda n, _: drain(signal.Signals(n).name))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    old = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield read
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)

