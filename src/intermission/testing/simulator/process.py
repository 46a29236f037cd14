"""A simulated process: the real engine between a wire to the store and one to the ledger.

It does in one actor what a worker with one slot does: submit or continue the job, rescue,
claim, run tasks, record how they end. Its keeper is the real one, ticked by the simulation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from random import Random
from typing import Any

from intermission.engine import record
from intermission.engine.gc import collect
from intermission.engine.keeper import Held, Keeper
from intermission.engine.outcome import Failed, Faulted, Finished, Outcome, Spoiled
from intermission.engine.plan import expand, with_gaps
from intermission.engine.publish import publish
from intermission.engine.rebuild import rebuild, remember_job
from intermission.engine.run_task import Hooks, Work, gaps, run_task
from intermission.engine.verify import verify
from intermission.engine.workspace import Workspace
from intermission.errors import (
    CorruptArtifact,
    EnvironmentFault,
    IntermissionError,
    LedgerError,
    StoreError,
)
from intermission.model import Completion, JobState, Lease
from intermission.telemetry import reached
from intermission.testing.simulator.actor import Actor
from intermission.testing.simulator.talk import TALK
from intermission.testing.simulator.wire import Wire
from intermission.testing.simulator.world import World

LEASE_TTL_S = 8.0
RENEW_EVERY_S = 2.0
POLL_S = 1.0
RETRY_DELAYS_S = (0.5, 2.0)
GRACE_S = 2 * LEASE_TTL_S
_ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
_JOB = "talk"
_LOG = logging.Logger("simulated")


class SlotKilled(BaseException):
    """The slot ended in the middle of a task, but not the worker."""


class Process:
    """One process, from its start to its end or its death."""

    def __init__(
        self, world: World, name: str, random: Random, *, task: str = "run", thorough: bool = False
    ) -> None:
        self.name = name
        self.task = task
        self.place = world.place
        """Where its ledger is; it may be led to another one while it works."""
        self.stalled_until_s = self.sleeping_until_s = 0.0
        self.draining = ""
        self.faults: dict[str, tuple[str, int]] = {}
        """By wire, whether its next calls fail before or after they took effect, and how many."""
        self.next_step_fails = self.next_completion_repeats = False
        self._world = world
        self._thorough = thorough
        self.is_local = task == "rebuild" or random.random() < 0.5
        """On this machine, where its lock proves its death; else its leases have to expire."""
        self._capacity = random.randint(1, 3)
        self._one_by_one = random.random() < 0.5
        self._lease: Lease | None = None
        self._slot_ends: str | None = None
        self._lost: set[int] = set()
        """Of the tasks claimed last, those that are no longer this process's."""
        self.store: Any = self._wire("store", world.audit.store_call)
        self.outputs: Any = self._wire("outputs", self._outputs_call)
        self.ledger: Any = self._wire("ledger", self._ledger_call(name))
        self._work = Work(world.job, TALK, self.store, self.outputs, world.scratch, name)
        self.keeper = Keeper(
            name,
            world.clock,
            lease_ttl_s=LEASE_TTL_S,
            renew_every_s=RENEW_EVERY_S,
            on_lost=self._on_lost,
            on_cancelled=self._on_lost,
        )
        beside: Any = self._wire("keeper", self._ledger_call(f"{name}-keeper"))
        self.keeper.open(_JOB, Workspace(world.scratch, lambda: self.store, None, lambda: beside))
        bodies = {"run": self._run, "rebuild": self._rebuild, "collect": self._collect}
        self.actor = Actor(name, bodies[task])

    def _wire(self, name: str, call: Any) -> Wire:
        return Wire(name, call, self.pause, self._suffer)

    def _outputs_call(self, method: str, *args: Any, **options: Any) -> Any:
        return getattr(self._world.outputs, method)(*args, **options)

    def _ledger_call(self, who: str) -> Any:
        return lambda method, *args, **options: self._world.ledger_call(
            who, self.place, method, *args, **options
        )

    def pause(self, where: str) -> None:
        """An instant at which others may run, and this process may be killed or stopped."""
        self._world.note(f"{self.name} {where}")
        if threading.current_thread() is self.actor.thread:
            self._check_slot()
            self.actor.pause(where)
            self._check_slot()

    def _check_slot(self) -> None:
        if self._lease is not None and self._slot_ends is not None:
            raise SlotKilled(self._slot_ends)

    def _suffer(self, wire: str, when: str) -> None:
        planned, left = self.faults.get(wire, ("", 0))
        if planned == when and left:
            self.faults[wire] = (planned, left - 1)
            self._world.note(f"{self.name} {wire} error")
            kind = StoreError if wire in ("store", "outputs") else LedgerError
            raise kind(f"the {wire} did not answer.", remedy="Run the same command again.")

    def _sleep(self, seconds: float) -> None:
        self.sleeping_until_s = self._world.clock.monotonic_s() + seconds
        self.pause("sleeping")

    def kill_slot(self, verdict: str = "") -> bool:
        """End the slot; with a verdict, on purpose. False when no task is running."""
        if self._lease is not None:
            self._slot_ends = verdict
        return self._lease is not None

    def _on_lost(self, _: str, held: Held) -> None:
        self._world.audit.counts["lease lost"] += 1
        if self._lease is not None and self._lease.task_id == held.task_id:
            self._slot_ends = "its lease was lost"
        self._lost.add(held.task_id)

    def _run(self) -> None:
        """What `run` does, until the job has ended or the machine fails."""
        try:
            self._submit()
            while not self.draining:
                self._rescue()
                leases = self._claim()
                self._run_batch(leases)
                if not leases and self._has_ended():
                    return
            self._leave()
        except IntermissionError as e:
            self._world.note(f"{self.name} stops: {e}")

    def _rebuild(self) -> None:
        try:
            rebuild(self.ledger, self.store, self._world.scratch, self.name)
        except IntermissionError as e:
            self._world.note(f"{self.name} stops: {e}")

    def _collect(self) -> None:
        try:
            collect(self.store, self._world.clock, grace_s=GRACE_S)
        except IntermissionError as e:
            self._world.note(f"{self.name} stops: {e}")

    def _submit(self) -> None:
        job, world = self._world.job, self._world
        remember_job(self.store, job)
        if not self.ledger.submit(job, expand(job, {})):
            verify(
                self.ledger,
                self.store,
                job,
                world.scratch,
                world.clock,
                thorough=self._thorough,
            )
            if self._job_state() in (JobState.FAILED, JobState.CANCELLED):
                self.ledger.retry(job.key)
        reached("after-submit")

    def _rescue(self) -> None:
        self.ledger.rescue(sorted(self._world.dead))

    def _claim(self) -> list[Lease]:
        asked_at_s = self._world.clock.monotonic_s()
        leases: list[Lease] = self.ledger.claim(
            self.name, self._capacity, lease_ttl_s=LEASE_TTL_S, jobs=[self._world.job.key]
        )
        reached("after-claim")
        deadline_s = asked_at_s + LEASE_TTL_S
        held = [Held(one.task_id, one.fence, deadline_s, asked_at_s) for one in leases]
        self._lost.clear()
        self.keeper.hold(_JOB, held)
        return leases

    def _has_ended(self) -> bool:
        state = self._job_state()
        if state not in _ENDED:
            self._sleep(POLL_S)
            return False
        if state is JobState.DONE:
            self._publish_all()
        return True

    def _job_state(self) -> JobState:
        rows = self.ledger.jobs(self._world.job.key)
        if not rows:
            raise LedgerError("the job is no longer in the ledger.")
        return rows[0].state

    def _publish_all(self) -> None:
        job, world = self._world.job, self._world
        for row, output in self.ledger.receipts(job.key):
            spec = job.step(row.step)
            if spec.publish is not None:
                publish(self.store, self.outputs, spec, row.index, output.files, world.scratch)

    def _run_batch(self, leases: Sequence[Lease]) -> None:
        finished: list[tuple[Lease, Completion]] = []
        for no, lease in enumerate(leases):
            if self.draining:
                self._record(finished)
                self._give_back(leases[no:], self.draining)
                return
            if lease.task_id in self._lost:
                continue
            outcome = self._run_slot(lease)
            if isinstance(outcome, Finished):
                finished.append((lease, outcome.completion))
            elif outcome is not None:
                self._record_trouble(lease, outcome)
            if self._one_by_one:
                self._record(finished)
                finished = []
        self._record(finished)

    def _run_slot(self, lease: Lease) -> Outcome | None:
        """One task as a slot runs it; None when the slot was killed on purpose."""
        ids = lease.task_id, lease.fence
        self._lease, self._slot_ends = lease, None
        hooks = Hooks(_LOG, self._executes(lease), lambda: False)
        try:
            return Finished(run_task(self._work, lease, hooks), 0.0)
        except SlotKilled as e:
            if e.args[0]:
                self._lease = None
                self._give_back([lease], e.args[0])
                return None
            return Failed(*ids, "SlotDied", "the slot was killed", False)
        except CorruptArtifact as e:
            return Spoiled(*ids, e.task_key, e.key, str(e))
        except EnvironmentFault as e:
            return Faulted(*ids, e.message, e.remedy)
        except Exception as e:
            permanent = isinstance(e, IntermissionError) and not e.retryable
            return Failed(*ids, type(e).__name__, str(e), permanent)
        finally:
            self._lease = None

    def _executes(self, lease: Lease) -> Any:
        """What the step's report of progress does: it tells that the step is running."""
        key = with_gaps(lease.key, gaps(lease))
        stood = self._world.audit.standing(lease.step, key)

        def executing(_: float) -> None:
            self._world.audit.executing(lease.step, key, stood)
            self.pause(f"executing {lease.step}[{lease.index}]")
            if self.next_step_fails:
                self.next_step_fails = False
                raise RuntimeError("it failed this once")

        return executing

    def _record(self, finished: Sequence[tuple[Lease, Completion]]) -> None:
        world = self._world
        for _ in range(1 + (self.next_completion_repeats and bool(finished))):
            record.complete(self.ledger, self.store, world.job, finished, world.scratch)
        if finished:
            self.next_completion_repeats = False
        world.sent += [(self, lease, completion) for lease, completion in finished]
        self.keeper.let_go(_JOB, [lease.task_id for lease, _ in finished])

    def _record_trouble(self, lease: Lease, outcome: Outcome) -> None:
        ledger, store, job = self.ledger, self.store, self._world.job
        held = [(lease.task_id, lease.fence)]
        if isinstance(outcome, Failed):
            ledger.fail([record.failure(job, lease, outcome, RETRY_DELAYS_S)])
        elif isinstance(outcome, Spoiled):
            lost = {outcome.input_key: [outcome.file_key]}
            record.spoil(ledger, store, job, lost, outcome.message)
            ledger.release(held, reason=outcome.message)
        elif isinstance(outcome, Faulted):
            ledger.release(held, reason=outcome.message)
            self.draining = outcome.message
        self.keeper.let_go(_JOB, [lease.task_id])

    def _give_back(self, leases: Sequence[Lease], reason: str) -> None:
        reached("before-release")
        self.ledger.release([(one.task_id, one.fence) for one in leases], reason=reason)
        self.keeper.let_go(_JOB, [one.task_id for one in leases])

    def _leave(self) -> None:
        self.ledger.mark(self._world.job.key, JobState.DRAINING, reason=self.draining)
