"""The worker: claims tasks, hands them to slots, records how they end, and drains when asked.

It is made of three parts: a work source, a lease renewer and an executor. One loop in one thread:
claim, hand out what there is, wait until somebody speaks, record what was said, kill what must
not go on. Leases are renewed beside it.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from intermission.engine.backlog import Backlog, stats_name
from intermission.engine.drain import Drain
from intermission.engine.gc_tuning import rarely_collected
from intermission.engine.lease_renewer import HeldLease, LeaseRenewer
from intermission.engine.step_stats import StepStats
from intermission.errors import (
    ChangeRefused,
    CorruptArtifact,
    EnvironmentFault,
    InputUnfinished,
    IntermissionError,
    LedgerError,
    LedgerRefused,
    StoreError,
)
from intermission.model import Lease, Reason, StepSpec
from intermission.polling import readable
from intermission.ports.clock import Clock
from intermission.ports.executor import Executor, Said, SlotEnded
from intermission.ports.slot_protocol import (
    Completed,
    CorruptInput,
    Deferral,
    Failed,
    HostFault,
    Progress,
    Results,
    Trouble,
)
from intermission.ports.work_source import Claimed, ClaimedJob, WorkSource
from intermission.telemetry import reached

POLL_S = 0.25
CANCEL_GRACE_S = 5.0
ENDS_WAIT_S = 0.1
"""How long ends may wait for others, to be recorded with them in one transaction; and only while
the slots have more to do."""
AWAY_S = 5.0
"""How long to leave a ledger alone that did not answer."""
HOARD_S = 1.0
"""How long a task may wait here for a slot while other workers may have one."""
log = logging.getLogger(__name__)

Wait = Callable[[Sequence[Any], float], Sequence[Any]]


@dataclass
class _Run:
    """A batch in a slot."""

    job: ClaimedJob
    batch: dict[int, Lease]
    """What has not been answered for, by task; all of one step."""
    started_s: float
    """When the task that runs now began."""
    deadline_s: float | None
    verdict: str = ""
    """Why the worker is about to kill it; its leases then go back instead of counting."""
    reason: Reason = Reason.DRAINED
    killed: bool = False

    @property
    def alone(self) -> bool:
        return any(lease.alone for lease in self.batch.values())

    @property
    def spec(self) -> StepSpec:
        return self.job.job.step(next(iter(self.batch.values())).step)


class Worker:
    """Works until its source has nothing left, or a drain ends. `wait` is `readable`, or a fake."""

    def __init__(
        self,
        source: WorkSource,
        renewer: LeaseRenewer,
        executor: Executor,
        clock: Clock,
        *,
        drain_s: float,
        on_tick: Callable[[], None] = lambda: None,
        wait: Wait = readable,
    ) -> None:
        self._source = source
        self._renewer = renewer
        self._executor = executor
        self._clock = clock
        self._on_tick = on_tick
        self._readable = wait
        self._drain = Drain(clock, drain_s)
        self._stats = StepStats()
        self._backlog = Backlog(self._stats)
        self._runs: dict[int, _Run] = {}
        self._ended: dict[tuple[str, str], list[tuple[ClaimedJob, Lease, Completed]]] = {}
        """What ended well and is not recorded, by job and step."""
        self._ended_s = 0.0
        """When the first of them did."""
        self._fault: EnvironmentFault | None = None
        self._unwritten: deque[Callable[[], None]] = deque()
        """Changes that the ledger has not taken yet, oldest first. Their leases are kept."""
        self._away_until_s = 0.0
        self._idle_s = 0.0
        """When a slot was last idle."""
        self._told: deque[tuple[str, HeldLease, Reason]] = deque()
        """Leases that the renewer said have ended."""
        renewer.report_to(self._lease_ended)

    def run(self) -> str | None:
        """Work. The reason, if a drain came before the end.

        Raises `EnvironmentFault` when the machine cannot go on; progress is saved then too.
        """
        with self._drain.listening() as wake, rarely_collected():
            self._renewer.start()
            try:
                return self.work(wake)
            finally:
                self._renewer.stop()
                self._executor.close()
                self._source.close()

    def work(self, wake: int) -> str | None:
        """The loop, for those who see to signals, renewals and the end themselves.

        `wake` is among what it waits for.
        """
        while self._goes_on():
            self._turn()
            self._wait(wake)
            self._enforce()
            self._on_tick()
        self._leave()
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

    @property
    def busy(self) -> int:
        """How many slots are at work; for any thread."""
        return len(self._runs)

    def kill_work(self) -> None:
        """For any thread: kill every task that runs, now; then drain. Their leases are lost."""
        for run in list(self._runs):
            self._executor.kill(run)
        self._drain.ask("the workspace was lost", 0.0)

    def _turn(self) -> None:
        """Keep the slots busy: with what is there at once, then with what the ends unblock."""
        self._dispatch()
        self._record_ends()
        self._claim()
        self._dispatch()

    def _goes_on(self) -> bool:
        if self._runs or self._ended:
            return True
        has_work = self._source.has_more or self._backlog or self._unwritten
        return self._drain.reason is None and bool(has_work)

    def _claim(self) -> None:
        """Ask for what the idle slots could run."""
        asked_at_s = self._clock.monotonic_s()
        if self._drain.reason is not None or asked_at_s < self._away_until_s:
            return
        if self._unwritten:
            self._catch_up()
            if self._unwritten:
                return
        idle = self._executor.idle
        room, begin = self._room()
        try:
            claimed = self._source.claim(room, self._busy_jobs(), begin=begin)
        except LedgerError as e:  # what runs goes on as long as its leases do
            self._not_answered(e)
            return
        except EnvironmentFault as e:  # this host is fit for nothing: others go on
            self._end_with(e)
            return
        self._hold(claimed, asked_at_s, begin)
        self._share(asked_at_s, idle)

    def _room(self) -> tuple[int, bool]:
        """How many tasks to ask for, and whether each will begin at once."""
        idle = self._executor.idle
        room = self._backlog.room(idle, self._has_room) if idle > 0 else 0
        return room, room <= idle

    def _hold(self, claimed: Sequence[Claimed], asked_at_s: float, begin: bool) -> None:
        if claimed:
            reached("after-claim")
        for _, some in groupby(claimed, lambda one: one.job.name):
            group = list(some)
            leases = [one.lease for one in group]
            self._renewer.hold(group[0].job, leases, asked_at_s, begun=begin)
        self._backlog.extend(claimed)

    def _busy_jobs(self) -> set[str]:
        running = {run.job.name for run in self._runs.values()}
        return self._renewer.jobs() | running

    def _share(self, now_s: float, idle: int) -> None:
        """Give back what was claimed for short tasks, when long ones have taken all slots."""
        if idle > 0:
            self._idle_s = now_s
        elif now_s - self._idle_s > HOARD_S:
            self._give_up_backlog(Reason.NO_SLOT)

    def _give_up_backlog(self, reason: Reason, message: str = "") -> None:
        for _, some in groupby(self._backlog.take_all(), lambda one: one.job.name):
            group = list(some)
            self._give_back(group[0].job, [one.lease for one in group], reason, message)

    def _has_room(self, spec: StepSpec) -> bool:
        """A step's limit holds over every source: what it protects, they share."""
        return spec.concurrency is None or spec.concurrency > sum(
            run.spec.name == spec.name for run in self._runs.values()
        )

    def _dispatch(self) -> None:
        """Give every idle slot a batch."""
        if self._drain.reason is not None:
            return
        now_s = self._clock.monotonic_s()
        while self._executor.idle > 0 and not any(run.alone for run in self._runs.values()):
            is_quiet = not self._runs
            batch = self._backlog.next_batch(self._has_room, is_quiet=is_quiet)
            if not batch or not self._start(batch, now_s):
                return

    def _start(self, batch: Sequence[Claimed], now_s: float) -> bool:
        """Start a batch with what it takes from upstream; False if the ledger did not answer."""
        job = batch[0].job
        leases = [one.lease for one in batch]
        try:
            number = self._executor.start(job.context(), leases, job.inputs(leases))
        except InputUnfinished as e:
            self._give_back(job, leases, Reason.INPUT_LOST, str(e))
            return True
        except LedgerError as e:
            self._not_answered(e)
            self._give_back(job, leases, Reason.LEDGER_AWAY, str(e))
            return False
        timeout_s = job.job.step(leases[0].step).timeout_s
        deadline_s = None if timeout_s is None else now_s + timeout_s
        self._runs[number] = _Run(job, {one.task_id: one for one in leases}, now_s, deadline_s)
        self._begun(self._runs[number])
        return True

    def _begun(self, run: _Run) -> None:
        """Of tasks that share a decode, one has begun and the others wait for their turn."""
        ids = list(run.batch)
        self._renewer.begin(run.job.name, ids[:1] if run.spec.batch_by else ids)

    def _wait(self, wake: int) -> None:
        """Sleep until a slot speaks, a slot ends or a signal comes; record what was said."""
        hints = self._source.wakes if self._executor.idle > 0 else ()
        ready = self._readable([self._executor, wake, *hints], self._patience_s())
        if wake in ready:
            os.read(wake, 512)
        for hint in hints:
            if hint in ready:
                hint.clear()  # before asking: a hint that comes meanwhile counts then
                self._source.ask_soon()
        if self._executor in ready:
            self._stop_ended()  # a slot that died of a lost lease has not crashed
            for event in self._executor.events():
                if isinstance(event, Said):
                    self._record(event.run, event.results)
                else:
                    self._bury(event)

    def _patience_s(self) -> float:
        if self._ended:
            now_s = self._clock.monotonic_s()
            return max(0.0, self._ended_s + ENDS_WAIT_S - now_s) if len(self._backlog) else 0.0
        if self._drain.reason is not None or self._executor.idle <= 0:
            return POLL_S
        if not self._goes_on() or self._backlog.ready(self._has_room):
            return 0.0
        ask_at_s = max(self._source.ask_at_s, self._away_until_s)
        return min(POLL_S, max(0.0, ask_at_s - self._clock.monotonic_s()))

    def _record(self, number: int, results: Results) -> None:
        """Write into the ledger what a slot said."""
        run = self._runs.get(number)
        if run is None:
            return
        for said in results:
            if isinstance(said, Progress):
                self._renewer.progress(run.job.name, said.task_id, said.fraction)
            elif (lease := run.batch.pop(said.task_id, None)) is None:
                continue
            elif isinstance(said, Completed):
                if not self._ended:
                    self._ended_s = self._clock.monotonic_s()
                done = self._ended.setdefault((run.job.name, lease.step), [])
                done.append((run.job, lease, said))
            else:
                self._write(partial(self._record_trouble, run.job, lease, said))
        self._go_on_with(number, run)

    def _record_ends(self) -> None:
        """Write down what ended well: at once, unless more short tasks are about to end."""
        if not self._ended:
            return
        waited_s = self._clock.monotonic_s() - self._ended_s
        if len(self._backlog) and self._drain.reason is None and waited_s < ENDS_WAIT_S:
            return
        ended, self._ended = self._ended, {}
        for some in ended.values():
            done = [(lease, completed) for _, lease, completed in some]
            self._write(partial(self._record_done, some[0][0], done))

    def _go_on_with(self, number: int, run: _Run) -> None:
        """A slot is at its next task, which has as long as the last; or the run is over."""
        if not run.batch:
            del self._runs[number]
            return
        run.started_s = self._clock.monotonic_s()
        self._begun(run)
        if run.deadline_s is not None and not run.verdict and run.spec.timeout_s is not None:
            run.deadline_s = run.started_s + run.spec.timeout_s

    def _record_done(self, job: ClaimedJob, done: Sequence[tuple[Lease, Completed]]) -> None:
        """Tasks of one step ended well. The next task of the job comes along where it can."""
        leases = [lease for lease, _ in done]
        asked_at_s = self._clock.monotonic_s()
        room, begin = self._room()
        if self._drain.reason is not None or not begin:
            room = 0  # batches of short tasks need no hurry, and others wait for the job meanwhile
        claimed: list[Claimed] = []
        try:
            claimed = self._source.complete(job, done, room)
        except CorruptArtifact as e:  # a plan's result: what has a receipt is adopted later
            first = leases[0]
            lost = CorruptInput(first.task_id, e.task_key, e.key, str(e))
            self._invalidate(job, first, lost)
            job.release(leases[1:], reason=Reason.INPUT_LOST, message=str(e))
        except ChangeRefused as e:  # never written, however often it is tried
            for lease in leases:
                job.fail(lease, Failed(lease.task_id, "ChangeRefused", str(e), True))
        except StoreError as e:  # a plan's result cannot be read now: its receipt is adopted later
            if not self._source.is_shared:
                raise
            job.release(leases, reason=Reason.STORE_AWAY, message=str(e))
        self._hold(claimed, asked_at_s, begin=True)
        self._let_go(job, leases)
        executed_s = [ended.took_s for _, ended in done if not ended.adopted]
        step = stats_name(job, leases[0].step)
        self._stats.finished(step, executed_s, mapped=leases[0].chunk is not None)
        if self._source.is_shared and log.isEnabledFor(logging.INFO):
            for lease, ended in done:
                took = {"took_s": round(ended.took_s, 3), "adopted": ended.adopted}
                log.info("done", extra=_about(lease) | took)
        self._source.finished(job, leases[0].step)

    def _record_trouble(self, job: ClaimedJob, lease: Lease, trouble: Trouble) -> None:
        if self._source.is_shared and not isinstance(trouble, Deferral):
            log.warning("%s", trouble.message, extra=_about(lease))
        match trouble:
            case Failed():
                job.fail(lease, trouble)
            case Deferral():
                job.defer(lease, trouble)
            case CorruptInput():
                self._invalidate(job, lease, trouble)
            case HostFault():
                self._refuse(job, lease, trouble)
        self._let_go(job, [lease])
        self._source.ask_soon()

    def _invalidate(self, job: ClaimedJob, lease: Lease, lost: CorruptInput) -> None:
        try:
            job.invalidate(lease, lost)
        except StoreError as e:  # the loss will be noticed again
            if not self._source.is_shared:
                raise
            job.release([lease], reason=Reason.STORE_AWAY, message=str(e))

    def _refuse(self, job: ClaimedJob, lease: Lease, fault: HostFault) -> None:
        try:
            self._source.refuse(job, [lease], fault)
        except LedgerError:
            raise
        except EnvironmentFault as e:  # nobody else could run it: the end, with progress saved
            self._end_with(e)

    def _end_with(self, fault: EnvironmentFault) -> None:
        if self._fault is None:
            self._fault = fault
            self.drain(fault.message)

    def _let_go(self, job: ClaimedJob, leases: Sequence[Lease]) -> None:
        self._renewer.let_go(job.name, [lease.task_id for lease in leases])

    def _give_back(
        self, job: ClaimedJob, leases: Sequence[Lease], reason: Reason, message: str = ""
    ) -> None:
        def release() -> None:
            job.release(leases, reason=reason, message=message)
            self._let_go(job, leases)
            self._source.ask_soon()

        self._write(release)

    def _write(self, change: Callable[[], None]) -> None:
        """Change the ledger now, or else when it answers again."""
        self._unwritten.append(change)
        if len(self._unwritten) == 1:
            self._catch_up()

    def _catch_up(self) -> None:
        try:
            while self._unwritten:
                self._unwritten[0]()
                self._unwritten.popleft()
        except ChangeRefused as e:  # its lease will end; what comes after must not wait for it
            log.warning("%s", e)
            self._unwritten.popleft()
        except LedgerError as e:
            self._not_answered(e)

    def _not_answered(self, e: LedgerError) -> None:
        if not self._source.is_shared:
            raise e
        if isinstance(e, LedgerRefused):  # our key, or our version: waiting does not help
            self._end_with(e)
            return
        log.warning("%s", e)
        self._away_until_s = self._clock.monotonic_s() + AWAY_S

    def _bury(self, ended: SlotEnded) -> None:
        """A slot ended. What it still held failed with it, unless we killed it for a reason."""
        run = self._runs.pop(ended.run, None)
        if run is None:
            return
        leases = list(run.batch.values())
        if run.verdict == "timeout":
            timeout_s = run.spec.timeout_s
            message = f"{run.spec.name} ran longer than its time-out of {timeout_s:g} s"
            self._fail(run.job, leases.pop(0), "TimedOut", message, Reason.TIMED_OUT)
        if run.verdict:
            self._give_back(run.job, leases, run.reason, run.verdict)
            return
        if not ended.may_be_the_tasks:
            self._give_back(run.job, leases, Reason.NO_SLOT, ended.how)
            return
        for lease in leases:
            self._fail(run.job, lease, "SlotDied", ended.how, Reason.CRASHED)

    def _fail(self, job: ClaimedJob, lease: Lease, error: str, message: str, code: Reason) -> None:
        failed = Failed(lease.task_id, error, message, False, code=code)
        self._write(partial(self._record_trouble, job, lease, failed))

    def _lease_ended(self, name: str, held: HeldLease, reason: Reason) -> None:
        """Called by the renewer: kill what lost its lease, whatever this thread is doing."""
        self._told.append((name, held, reason))  # first, so that its end is not taken for a crash
        number = self._running(name, held)
        if number is not None and reason is Reason.LEASE_LOST:
            self._executor.kill(number)

    def _running(self, name: str, held: HeldLease) -> int | None:
        """The run that has a lease on its batch, and no later one of its task; for any thread."""
        for number, run in list(self._runs.items()):
            lease = run.batch.get(held.task_id) if run.job.name == name else None
            if lease is not None and lease.fence == held.fence:
                return number
        return None

    def _stop_ended(self) -> None:
        """Stop work on leases that ended; a cancelled task is told, and has a while to stop."""
        while self._told:
            name, held, reason = self._told.popleft()
            number = self._running(name, held)
            if number is None:
                self._backlog.drop(name, held.task_id, held.fence)
                continue
            run = self._runs[number]
            run.reason = reason
            if reason is Reason.LEASE_LOST:
                self._kill(number, "its lease was lost")
            else:
                self._executor.cancel(number, held.task_id)
                run.verdict = "the job was cancelled"
                run.deadline_s = self._clock.monotonic_s() + CANCEL_GRACE_S

    def _kill(self, number: int, verdict: str) -> None:
        run = self._runs[number]
        run.verdict, run.killed = verdict, True
        self._executor.kill(number)

    def _enforce(self) -> None:
        """Kill what ran too long, lost its lease, is no longer wanted, or cannot finish."""
        self._renewer.check()
        self._stop_ended()
        now_s = self._clock.monotonic_s()
        for number, run in list(self._runs.items()):
            if run.killed:
                continue
            if run.deadline_s is not None and now_s >= run.deadline_s:
                self._kill(number, run.verdict or "timeout")
            elif self._drain.reason is not None and not self._can_finish(run, now_s):
                self._kill(number, self._drain.reason)

    def _can_finish(self, run: _Run, now_s: float) -> bool:
        """Whether what a slot runs is expected to end before the drain must."""
        mean_s = self._stats.mean_s(stats_name(run.job, run.spec.name))
        expected_s = now_s if mean_s is None else run.started_s + mean_s
        return max(now_s, expected_s) < self._drain.deadline_s

    def _leave(self) -> None:
        """Give back what was not begun. A ledger that is away loses nothing: leases end."""
        with suppress(IntermissionError):
            self._record_ends()
            self._give_up_backlog(Reason.DRAINED, self._drain.reason or "")
            self._catch_up()
        self._source.leave(self._drain.reason)


def _about(lease: Lease) -> dict[str, Any]:
    """What a line of the log is about."""
    task = lease.step if lease.chunk is None else f"{lease.step}[{lease.index}]"
    return {"job": lease.job_key[:10], "task": task, "attempt": lease.attempt}
