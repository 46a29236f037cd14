"""An assignment: one job in one workspace, while a worker works on it."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field

from intermission.engine.tally import Tally
from intermission.engine.workspace import Workspace
from intermission.model import Job, Lease
from intermission.ports.ledger import Ledger
from intermission.ports.store import Store

BATCH_S = 0.05
"""Tasks that together take about this long travel to a slot in one message."""
BATCH_MAX = 512


@dataclass
class Assignment:
    """One job in one workspace, while this worker works on it."""

    workspace: Workspace
    job: Job
    ledger: Ledger
    store: Store
    tally: Tally
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
        return _batch_size(self.tally.shortest_mean_s())

    def next_batch(self) -> list[Lease]:
        """Leases that run well together: first tries of a step whose tasks are short.

        A task that was tried before runs alone, so that a crash is surely its own.
        """
        batch = [self.backlog.popleft()]
        spec = self.job.step(batch[0].step)
        if batch[0].attempt > 1 or spec.attempts == 1:
            return batch
        size = _batch_size(self.tally.mean_s(spec.name))
        while len(batch) < size and self.backlog and _first_try(self.backlog[0], spec.name):
            batch.append(self.backlog.popleft())
        return batch


def _first_try(lease: Lease, step: str) -> bool:
    return lease.step == step and lease.attempt == 1


def _batch_size(mean_s: float | None) -> int:
    return 1 if mean_s is None else max(1, min(BATCH_MAX, int(BATCH_S / max(mean_s, 1e-6))))
