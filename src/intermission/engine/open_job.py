"""An assignment: one job in one workspace, while a worker works on it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from intermission.engine.messages import JobContext
from intermission.engine.step_stats import StepStats
from intermission.engine.workspace import Workspace
from intermission.errors import LedgerError
from intermission.model import Job, JobState, Lease, StepSpec
from intermission.ports.ledger import Ledger
from intermission.ports.store import Store
from intermission.settings import Settings

BATCH_S = 0.1
"""Tasks that together take about this long travel to a slot in one message."""
BATCH_MAX = 2048
TOGETHER_MAX = 16
"""As many tasks of one chunk, at most, run together in one slot."""


@dataclass
class OpenJob:
    """One job in one workspace, while this worker works on it."""

    workspace: Workspace
    job: Job
    ledger: Ledger
    store: Store
    stats: StepStats
    backlog: deque[Lease] = field(default_factory=deque[Lease])
    """Claimed, and not handed to a slot yet."""
    idle_until_s: float = 0.0
    """Nothing was claimable; ask again then, or when one of its tasks ends."""
    resources: ExitStack = field(default_factory=ExitStack)

    @property
    def name(self) -> str:
        """Sources with equal content have equal jobs, each in a workspace of its own."""
        return f"{self.workspace.folder}:{self.job.key}"

    def batch_size(self) -> int:
        """How many leases are worth claiming for one slot."""
        fewest = TOGETHER_MAX if any(spec.batch_by for spec in self.job.steps) else 1
        return max(fewest, _batch_size(self.stats.recent_s))

    def has_ended(self) -> bool:
        rows = self.ledger.jobs(self.job.key)
        if not rows:
            raise LedgerError(
                f"the job {self.job.key[:10]} is gone from the ledger.",
                remedy="Finished tasks have their receipts: run the same command again.",
            )
        return rows[0].state in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)

    def orders(self, worker: str, settings: Settings) -> JobContext:
        """What a slot has to know before it can run any of these tasks."""
        return JobContext(
            name=self.name,
            job=self.job,
            open_store=self.workspace.open_store,
            open_outputs=self.workspace.open_outputs,
            fetch_source=self.workspace.fetch_source,
            folder=self.workspace.folder,
            worker=worker,
            settings=settings,
        )

    def ready(self, has_room: Callable[[StepSpec], bool]) -> Sequence[Lease]:
        """What of the backlog a slot could be given now."""
        full = {spec.name for spec in self.job.steps if not has_room(spec)}
        if not full:
            return self.backlog
        return [lease for lease in self.backlog if lease.step not in full]

    def next_batch(self, has_room: Callable[[StepSpec], bool]) -> list[Lease]:
        """Leases that run well together: first tries of a step whose tasks are short.

        A task that was tried before, or has a time-out, runs alone, so that a crash or a
        time-out is surely its own. Those that belong together part at the last attempt.
        """
        ready = self.ready(has_room)
        if not ready:
            return []
        batch = [ready[0]]
        spec = self.job.step(batch[0].step)
        if spec.batch_by and batch[0].attempt < spec.attempts:
            batch = _together(spec, ready)
        elif batch[0].attempt == 1 and spec.attempts > 1 and spec.timeout_s is None:
            for lease in islice(ready, 1, _batch_size(self.stats.mean_s(spec.name))):
                if lease.step != spec.name or lease.attempt > 1:
                    break
                batch.append(lease)
        taken = {lease.task_id for lease in batch}
        self.backlog = deque(lease for lease in self.backlog if lease.task_id not in taken)
        return batch


def _together(spec: StepSpec, ready: Iterable[Lease]) -> list[Lease]:
    """The first of these leases, and those whose chunks agree with its own."""
    agreeing: dict[tuple[Any, ...], list[Lease]] = {}
    for lease in ready:
        if lease.step == spec.name and lease.attempt < spec.attempts:
            chunk = json.loads(lease.chunk or "{}")
            agreeing.setdefault(tuple(chunk[name] for name in spec.batch_by), []).append(lease)
    return next(iter(agreeing.values()))[:TOGETHER_MAX]


def _batch_size(mean_s: float | None) -> int:
    return 1 if mean_s is None else max(1, min(BATCH_MAX, int(BATCH_S / max(mean_s, 1e-6))))
