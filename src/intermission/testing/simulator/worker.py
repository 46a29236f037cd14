"""A simulated `run`: the real engine, in the order in which the worker and its slot use it.

It does in one actor what a worker with one slot does in its processes: submit or continue the
job, rescue, claim, run tasks, record how they end. Its keeper is the real one, without its
thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from intermission.engine import completion
from intermission.engine.inputs import inputs_of, skipped_inputs
from intermission.engine.lease_renewer import HeldLease, LeaseRenewer
from intermission.engine.open_job import LedgerRenewalsOf
from intermission.engine.planning import expand, with_skipped
from intermission.engine.publish import publish
from intermission.engine.run_task import Hooks, Work, run_task
from intermission.engine.store_io import StoreIO
from intermission.errors import (
    CorruptArtifact,
    EnvironmentFault,
    InputUnfinished,
    IntermissionError,
    LedgerError,
)
from intermission.maintenance.rebuild import remember_job
from intermission.maintenance.verify import verify
from intermission.model import Completion, JobState, Lease, Reason
from intermission.ports.ledger import every_receipt
from intermission.ports.slot_protocol import (
    Completed,
    CorruptInput,
    Failed,
    HostFault,
    Inputs,
    Outcome,
)
from intermission.telemetry import reached
from intermission.testing.simulator.process import Process
from intermission.testing.simulator.sample_pipeline import TALK
from intermission.testing.simulator.world import World

LEASE_TTL_S = 8.0
RENEW_EVERY_S = 2.0
POLL_S = 2.0
RETRY_DELAYS_S = (0.5, 2.0)
_ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
_NAME = "talk"
_LOG = logging.Logger("simulated")


class SlotKilled(BaseException):
    """The slot ended in the middle of a task, but not the worker."""


class Worker(Process):
    """One process that works on the job until it has ended or the machine fails."""

    def __init__(self, world: World, name: str, random: Random, *, thorough: bool = False) -> None:
        self._thorough = thorough
        self._capacity = random.randint(1, 3)
        self._one_by_one = random.random() < 0.5
        self._lease: Lease | None = None
        """What the slot is running."""
        self._slot_ends: str | None = None
        """Why the slot is to die; empty for no reason of ours."""
        self._lost: set[int] = set()
        """Of the tasks claimed last, those that are no longer ours."""
        super().__init__(world, name, is_local=random.random() < 0.5)
        self._outputs = self.wire("outputs", world.outputs_call)
        self._work = Work(
            world.job,
            TALK,
            StoreIO(world.job, self.store, self._outputs, world.scratch),
            name,
        )
        self._renewer = LeaseRenewer(
            name,
            world.clock,
            lease_ttl_s=LEASE_TTL_S,
            renew_every_s=RENEW_EVERY_S,
        )
        self._renewer.report_to(self._on_lost, self._on_lost)
        beside = self.wire("keeper", self.ledger_call(f"{name}-keeper"))
        self._held: Any = SimpleNamespace(
            name=_NAME, open_renewals=LedgerRenewalsOf(lambda: beside)
        )

    def tick(self) -> None:
        self._renewer.tick()

    def check(self) -> None:
        if self._lease is not None and self._slot_ends is not None:
            raise SlotKilled(self._slot_ends)

    @property
    def is_busy(self) -> bool:
        return self._lease is not None

    def kill_slot(self) -> bool:
        if self.is_busy:
            self._slot_ends = ""
        return self.is_busy

    def _on_lost(self, _: str, held: HeldLease) -> None:
        self.world.audit.counts["lease lost"] += 1
        if self._lease is not None and self._lease.task_id == held.task_id:
            self._slot_ends = "its lease was lost"
        self._lost.add(held.task_id)

    def body(self) -> None:
        self._submit()
        while not self.draining:
            self.ledger.rescue(sorted(self.world.dead))
            leases = self._claim()
            self._run_batch(leases)
            if not leases and self._has_ended():
                return
        self.ledger.mark(self.world.job.key, JobState.DRAINING, reason=self.draining)

    def _submit(self) -> None:
        world, job = self.world, self.world.job
        remember_job(self.store, job)
        if not self.ledger.submit(job, expand(job, {})):
            made = self.ledger, self.store, job, world.scratch, world.clock
            verify(*made, thorough=self._thorough)
            if self._job_state() in (JobState.FAILED, JobState.CANCELLED):
                self.ledger.retry(job.key)
        reached("after-submit")

    def _job_state(self) -> JobState:
        rows = self.ledger.jobs(self.world.job.key)
        if not rows:
            raise LedgerError("the job is no longer in the ledger.")
        return rows[0].state

    def _claim(self) -> list[Lease]:
        asked_at_s = self.world.clock.monotonic_s()
        leases: list[Lease] = self.ledger.claim(
            self.name, self._capacity, lease_ttl_s=LEASE_TTL_S, jobs=[self.world.job.key]
        )
        reached("after-claim")
        self._lost.clear()
        self._renewer.hold(self._held, leases, asked_at_s)
        return leases

    def _has_ended(self) -> bool:
        state = self._job_state()
        if state not in _ENDED:
            self.sleep(POLL_S)
            return False
        if state is JobState.DONE:
            self._publish_all()
        return True

    def _publish_all(self) -> None:
        world, job = self.world, self.world.job
        for row, output in every_receipt(self.ledger, job.key):
            spec = job.step(row.step)
            if spec.publish is not None:
                publish(
                    self.store, self._outputs, job, spec, row.index, output.files, world.scratch
                )

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
            if isinstance(outcome, Completed):
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
        try:
            taken = inputs_of(self.ledger, self.world.job, lease)
            inputs = {param: tuple(outputs) for param, outputs in taken.items()}
        except InputUnfinished as e:
            self._give_back([lease], str(e))
            return None
        hooks = Hooks(_LOG, self._executes(lease, inputs), lambda: False)
        self._lease, self._slot_ends = lease, None
        try:
            return Completed(run_task(self._work, lease, inputs, hooks), 0.0)
        except SlotKilled as e:
            if not e.args[0]:
                return Failed(*ids, "SlotDied", "the slot was killed", False, code=Reason.CRASHED)
            verdict = str(e)
        except CorruptArtifact as e:
            return CorruptInput(*ids, e.task_key, e.key, str(e))
        except EnvironmentFault as e:
            return HostFault(*ids, e.message, e.remedy, e.exit_code)
        except Exception as e:
            permanent = isinstance(e, IntermissionError) and not e.retryable
            return Failed(*ids, type(e).__name__, str(e), permanent)
        finally:
            self._lease = None
        self._give_back([lease], verdict)
        return None

    def _executes(self, lease: Lease, inputs: Inputs) -> Callable[[float], None]:
        """What a step's report of progress does: it tells that the step is running."""
        key = with_skipped(lease.key, skipped_inputs(self.world.job, lease.step, inputs))
        stood = self.world.audit.standing(lease.step, key)

        def executing(_: float) -> None:
            self.world.audit.executing(lease.step, key, stood)
            self.pause(f"executing {lease.step}[{lease.index}]")
            if self.next_step_fails:
                self.next_step_fails = False
                raise RuntimeError("it failed this once")

        return executing

    def _record(self, finished: Sequence[tuple[Lease, Completion]]) -> None:
        if not finished:
            return
        for _ in range(1 + self.next_completion_repeats):
            completion.complete(
                self.ledger, self.store, self.world.job, finished, self.world.scratch
            )
        self.next_completion_repeats = False
        self.world.sent += [(self, lease, done) for lease, done in finished]
        self._renewer.let_go(_NAME, [lease.task_id for lease, _ in finished])

    def _record_trouble(self, lease: Lease, outcome: Outcome) -> None:
        job = self.world.job
        held = [(lease.task_id, lease.fence)]
        if isinstance(outcome, Failed):
            self.ledger.fail([completion.failure(job, lease, outcome, RETRY_DELAYS_S)])
        elif isinstance(outcome, CorruptInput):
            lost = {outcome.input_key: [outcome.file_key]}
            completion.invalidate(self.ledger, self.store, job, lost, outcome.message)
            self.ledger.release(held, reason=outcome.message)
        elif isinstance(outcome, HostFault):
            self.ledger.release(held, reason=outcome.message)
            self.draining = outcome.message
        self._renewer.let_go(_NAME, [lease.task_id])

    def _give_back(self, leases: Sequence[Lease], reason: str) -> None:
        reached("before-release")
        self.ledger.release([(one.task_id, one.fence) for one in leases], reason=reason)
        self._renewer.let_go(_NAME, [one.task_id for one in leases])
