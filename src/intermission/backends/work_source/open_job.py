"""A job that a worker has open: its ledger, its store, and how ends of its tasks are recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property

from intermission.backends.task_io.store_io import store_io
from intermission.engine import completion
from intermission.engine.inputs import read_inputs
from intermission.engine.step_stats import StepStats
from intermission.engine.workspace import Workspace
from intermission.errors import LedgerError
from intermission.model import Completion, Job, JobRow, JobState, Lease, Reason, TaskState
from intermission.ports.ledger import Ask, Ledger
from intermission.ports.slot_protocol import (
    Completed,
    CorruptInput,
    Deferral,
    Failed,
    Inputs,
    JobContext,
)
from intermission.ports.store import Store
from intermission.ports.work_source import Renewals
from intermission.settings import Settings
from intermission.telemetry import reached


def job_row(ledger: Ledger, key: str) -> JobRow:
    """A job that was in the ledger before. Another ledger may have taken its place since."""
    rows = ledger.jobs(key)
    if not rows:
        raise LedgerError(
            f"the job {key[:10]} is gone from the ledger.",
            remedy="Finished tasks have their receipts: run the same command again.",
        )
    return rows[0]


@dataclass
class OpenJob:
    """One job in one workspace, while this worker works on it."""

    workspace: Workspace
    job: Job
    ledger: Ledger
    store: Store
    worker: str
    settings: Settings
    delays_s: Sequence[float] = (1.0, 5.0, 15.0)
    """Between attempts, where the step says nothing."""
    jitter: float = 0.0
    """The share by which each of them is longer or shorter, so that not all try at once."""
    stats: StepStats = field(default_factory=StepStats)
    idle_until_s: float = 0.0
    """Nothing was claimable; ask again then, or when one of its tasks ends."""
    resources: ExitStack = field(default_factory=ExitStack)
    ref: str = ""
    """Where slots find the pipeline: what this worker's catalog says, never the job."""

    name: str = field(init=False)
    """Sources with equal content have equal jobs, each in a workspace of its own."""

    def __post_init__(self) -> None:
        self.name = f"{self.workspace.folder}:{self.job.key}"

    @property
    def open_renewals(self) -> Callable[[], Renewals]:
        return LedgerRenewalsOf(self.workspace.open_ledger)

    def context(self) -> JobContext:
        return self._context

    @cached_property
    def _context(self) -> JobContext:
        return JobContext(
            name=self.name,
            job=self.job,
            ref=self.ref,
            open_io=store_io(self.workspace, self.job),
            folder=self.workspace.folder,
            worker=self.worker,
            settings=self.settings,
        )

    def has_ended(self) -> bool:
        state = job_row(self.ledger, self.job.key).state
        return state in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)

    def inputs(self, leases: Sequence[Lease]) -> Mapping[int, Inputs]:
        return read_inputs(self.ledger, self.job, leases)

    def complete(
        self, done: Sequence[tuple[Lease, Completed]], ask: Ask | None = None
    ) -> list[Lease]:
        leases: list[Lease] = []

        def complete_and_claim(ended: Sequence[Completion]) -> list[bool]:
            assert ask is not None
            left = ask._replace(capacity=ask.capacity - len(leases))
            accepted, claimed = self.ledger.complete_and_claim(ended, left)
            leases.extend(claimed)
            return accepted

        accepted = completion.complete(
            self.ledger,
            self.store,
            self.job,
            [
                (lease, Completion(lease.task_id, lease.fence, result, receipt, adopted, lease.key))
                for lease, (_, result, receipt, adopted, *_) in done
            ],
            self.workspace.scratch,
            complete_and_claim if ask is not None else None,
        )
        self.idle_until_s = 0.0
        kept = [ended for (_, ended), ok in zip(done, accepted, strict=True) if ok]
        step = done[0][0].step
        executed_s = [ended.took_s for ended in kept if not ended.adopted]
        self.stats.finished(step, executed_s, len(kept) - len(executed_s))
        self.stats.warnings += [f"{step}: {text}" for ended in kept for text in ended.warnings]
        return leases

    def fail(self, lease: Lease, failed: Failed) -> TaskState | None:
        how = completion.failure(self.job, lease, failed, self.delays_s, self.jitter)
        (state,) = self.ledger.fail([how])
        if state is not None:  # else the lease was somebody else's by then
            self.stats.failed(lease.step, failed.message)
        self.idle_until_s = 0.0
        return state

    def invalidate(self, lease: Lease, corrupt: CorruptInput) -> None:
        self.lose(corrupt.input_key, corrupt.file_key, corrupt.message)
        # Already blocked by that, unless somebody else had noticed before.
        self.release([lease], reason=Reason.INPUT_LOST, message=corrupt.message)

    def lose(self, task_key: str, file_key: str, message: str) -> None:
        """Send the task back to work whose file is missing or altered."""
        completion.invalidate(self.ledger, self.store, self.job, {task_key: [file_key]}, message)

    def defer(self, lease: Lease, deferral: Deferral) -> None:
        _, token, timeout_s = deferral
        self.ledger.defer(lease.task_id, lease.fence, token=token, timeout_s=timeout_s)

    def release(self, leases: Sequence[Lease], *, reason: Reason, message: str = "") -> None:
        reached("before-release")
        held = [(one.task_id, one.fence) for one in leases]
        self.ledger.release(held, reason=reason, message=message or None)
        self.idle_until_s = 0.0


@dataclass(frozen=True)
class LedgerRenewalsOf:
    """Equal for jobs of one ledger, so that they share a connection."""

    open_ledger: Callable[[], Ledger]

    def __call__(self) -> Renewals:
        return _LedgerRenewals(self.open_ledger())


class _LedgerRenewals:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.renew = ledger.renew
        self.close = ledger.close

    def cancelled(self, job_keys: Collection[str]) -> set[str]:
        states = [JobState.CANCELLED]
        return {key for key in job_keys if self._ledger.jobs(key, states=states, limit=1)}
