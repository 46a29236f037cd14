"""The leases that workers behind a server have, and the jobs they are of, as a server keeps them.

All of it is memory: what is missing is read again from the lease token and the ledger, because a
server may be restarted at any time, and several may share one ledger.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from intermission.backends.source_files import SourceCheck
from intermission.composition.fleet import Fleet
from intermission.engine.inputs import fan_ins, inputs_of, skipped_inputs
from intermission.engine.planning import with_skipped
from intermission.engine.receipt import attempt_prefix, new_attempt
from intermission.engine.workspace import Workspace
from intermission.errors import IntermissionError, NotFound
from intermission.maintenance.preview import Previews
from intermission.maintenance.superseded_outputs import bring_back
from intermission.model import HELD, Job, Lease, Reason, StepSpec, TaskRow, TaskState
from intermission.operations.lease_tokens import LeaseToken, read_token
from intermission.pipeline import Pipeline
from intermission.ports.ledger import Ledger, task_with
from intermission.ports.slot_protocol import Inputs
from intermission.ports.store import Store

KEEP_S = 30.0
"""How long a job stays open after its last task, because more of it may come."""
LOOK_EVERY_S = 5.0
LEASES_MAX = 100_000
TRUSTED_S = 5.0
"""How long the ledger's word holds that a lease is current."""


class NoLease(IntermissionError):
    """The token is altered, another worker's, or of a lease that ended."""


@dataclass(frozen=True)
class Worker:
    """A caller, as far as its leases go."""

    id: str
    """Empty for the administrator."""
    secret: bytes
    """Signs its lease tokens."""

    def process(self, name: str) -> str:
        """A process of this worker as the ledger knows it: no worker can be taken for another."""
        return f"{self.id}/{name}" if self.id else name


@dataclass(frozen=True)
class OpenedJob:
    """A job whose files are at hand."""

    job: Job
    pipeline: Pipeline | None
    """Its code, where that is installed here."""
    workspace: Workspace
    store: Store
    outputs: Store | None
    check_source: SourceCheck = field(default_factory=SourceCheck)
    resources: ExitStack = field(default_factory=ExitStack)

    @property
    def scratch(self) -> Path:
        return self.workspace.scratch


@dataclass
class HeldTask:
    """A lease that a worker has."""

    lease: Lease
    token: LeaseToken
    opened: OpenedJob
    current_until_s: float
    open_ledger: Callable[[], Ledger]
    """The ledger of whichever thread asks."""

    @property
    def inputs(self) -> Inputs:
        """What the task takes from upstream, as the ledger has it now."""
        return inputs_of(self.open_ledger(), self.opened.job, self.lease)

    @cached_property
    def skipped(self) -> list[str]:
        """The inputs of a fan-in that were skipped."""
        job, step = self.opened.job, self.lease.step
        return skipped_inputs(job, step, fan_ins(self.open_ledger(), job, step))

    @property
    def spec(self) -> StepSpec:
        return self.opened.job.step(self.lease.step)

    @property
    def receipt_key(self) -> str:
        """The task's key, or that of a fan-in which goes ahead without some inputs."""
        return with_skipped(self.lease.key, self.skipped)

    @property
    def prefix(self) -> str:
        """Where this attempt's artifacts lie."""
        return attempt_prefix(self.lease.step, self.receipt_key, self.token.attempt)

    def artifact_key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    @property
    def spool(self) -> Path:
        """Where an artifact's bytes wait until they are all there."""
        return self.opened.scratch / "uploads"


class HeldTasks:
    """Leases by their tokens. For any thread."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._lock = threading.Lock()
        self._previews = Previews()
        self._jobs: dict[str, OpenedJob] = {}
        self._used_s: dict[str, float] = {}
        """By the key of a job, when it was last asked for."""
        self._looked_s = 0.0
        self._held: OrderedDict[tuple[int, int], HeldTask] = OrderedDict()

    def opened(self, job_key: str) -> OpenedJob:
        """A job of the ledger. Raises `NotFound`."""
        with self._lock:
            self._used_s[job_key] = time.monotonic()
            if job_key in self._jobs:
                return self._jobs[job_key]
        rows = [row for row in self.ledger.jobs(job_key) if row.job.key == job_key]
        if not rows:
            raise NotFound(f"there is no job {job_key}.", remedy="Submit it first.")
        job = rows[0].job
        workspace, pipeline = self._fleet.workspace(job), self._fleet.pipeline(job)
        outputs = None if workspace.open_outputs is None else workspace.open_outputs()
        opened = OpenedJob(job, pipeline, workspace, workspace.open_store(), outputs)
        bring_back(self.ledger, opened.store, job)
        with self._lock:
            if self._jobs.setdefault(job_key, opened) is not opened:
                return self._jobs[job_key]
        if pipeline is not None:
            self._previews.watch(opened, pipeline)
        return opened

    def close_unused(self) -> None:
        """Close jobs that nobody has asked for in a while. One that goes on is opened anew."""
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._looked_s < LOOK_EVERY_S:
                return
            self._looked_s = now_s
            self._used_s |= dict.fromkeys((it.lease.job_key for it in self._held.values()), now_s)
            unused = [key for key, used_s in self._used_s.items() if now_s - used_s > KEEP_S]
            closed = [self._jobs.pop(key) for key in unused if key in self._jobs]
            for key in unused:
                del self._used_s[key]
        for opened in closed:
            opened.resources.close()

    @property
    def ledger(self) -> Ledger:
        return self._fleet.ledger

    def hold(self, lease: Lease, process: str, until_s: float) -> HeldTask | None:
        """Remember a lease; None, and the lease is given back, if its job can't be opened here."""
        try:
            opened = self.opened(lease.job_key)
        except IntermissionError as e:
            held = [(lease.task_id, lease.fence)]
            self.ledger.release(held, reason=Reason.STORE_AWAY, message=str(e))
            return None
        at = lease.attempt, lease.job_key, lease.step, lease.index, lease.key
        attempt = new_attempt(lease.fence)
        token = LeaseToken(lease.task_id, lease.fence, attempt, *at, process)
        return self._remember(lease, token, opened, until_s)

    def renewed(self, leases: Collection[tuple[int, int]], until_s: float) -> None:
        """The ledger says until when leases are current."""
        with self._lock:
            for lease in leases:
                if (held := self._held.get(lease)) is not None:
                    held.current_until_s = until_s

    def forget(self, leases: Collection[tuple[int, int]]) -> None:
        with self._lock:
            for lease in leases:
                self._held.pop(lease, None)

    def _remember(
        self, lease: Lease, token: LeaseToken, opened: OpenedJob, until_s: float
    ) -> HeldTask:
        held = HeldTask(lease, token, opened, until_s, lambda: self.ledger)
        with self._lock:
            self._held[held.lease.task_id, held.lease.fence] = held
            while len(self._held) > LEASES_MAX:
                self._held.popitem(last=False)
        return held

    def let_go(self, held: HeldTask) -> None:
        self.forget([(held.lease.task_id, held.lease.fence)])

    def find(self, worker: Worker, text: str) -> HeldTask:
        """The lease that a token is of, held or ended. Raises `NoLease`."""
        token = read_token(text, worker.secret)
        if token is None:
            raise NoLease(
                "this lease token was given to another worker, or altered.",
                remedy="Send the token as the claim gave it, with the key that claimed.",
            )
        with self._lock:
            held = self._held.get((token.task_id, token.fence))
        if held is not None and held.token == token:
            return held
        row = self._row(token)  # it was claimed before this server was started, or from another
        opened = self.opened(token.job_key)
        at = token.tries, token.job_key, token.step, token.index, token.key
        lease = Lease(token.task_id, token.fence, *at, row.chunk)
        until_s = time.monotonic() + TRUSTED_S if row.state in HELD else 0.0
        return self._remember(lease, token, opened, until_s)

    def _row(self, token: LeaseToken) -> TaskRow:
        row = task_with(self.ledger, token.job_key, token.task_id)
        if row is not None and (row.fence, row.key) == (token.fence, token.key):
            return row
        raise NoLease(
            f"the lease of {token.step}[{token.index}] ended, and its task went on elsewhere.",
            remedy="Drop this task and claim another.",
        )

    def is_current(self, held: HeldTask) -> bool:
        """Whether a lease is still its worker's, or could be again: nobody else claimed it."""
        now_s = time.monotonic()
        if now_s < held.current_until_s:
            return True
        with suppress(NoLease):
            state = self._row(held.token).state
            if state in HELD or state is TaskState.ABANDONED:
                held.current_until_s = now_s + TRUSTED_S
                return True
        return False

    def check_current(self, held: HeldTask) -> None:
        """Raise `NoLease` unless a lease is still its worker's."""
        if not self.is_current(held):
            raise NoLease(
                f"the lease of {held.lease.step}[{held.lease.index}] ended.",
                remedy="Drop this task and claim another.",
            )
