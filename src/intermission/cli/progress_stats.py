"""What a run has done and has yet to do, step by step, added up over its sources.

Rates and remaining times come from the work of this run alone: what was finished before
says nothing about how fast the rest will go.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from intermission.model import FINISHED, HELD, TaskState
from intermission.operations import SourceRun


@dataclass(frozen=True)
class StepMeter:
    """One step's tasks by what became of them."""

    name: str
    total: int
    done: int
    reused: int
    failed: int
    cancelled: int
    partly: float
    """The progress of the tasks that are running, added up."""
    rate_per_s: float | None
    left_s: float | None

    @property
    def ended(self) -> bool:
        return self.total > 0 and self.done + self.lost == self.total

    @property
    def lost(self) -> int:
        return self.failed + self.cancelled

    @property
    def losses(self) -> list[str]:
        """What did not work out, in words."""
        told = {"failed": self.failed, "cancelled": self.cancelled}
        return [f"{n} {what}" for what, n in told.items() if n]


@dataclass
class _Sum:
    """One step's numbers, added up."""

    counts: Counter[TaskState] = field(default_factory=Counter[TaskState])
    executed: int = 0
    adopted: int = 0
    partly: float = 0.0


class Meter:
    """Feed it the sources as they open and close; ask it for the steps whenever there is time."""

    def __init__(self) -> None:
        self.open: list[SourceRun] = []
        self.found = 0
        """Sources that the run has, begun or not."""
        self.done = 0
        """Sources that are through."""
        self._closed: dict[str, _Sum] = {}
        self._reused: Counter[str] = Counter()
        self._began_s: dict[str, float] = {}

    def opened(self, run: SourceRun) -> None:
        self.open.append(run)
        for step, counts in run.row.counts.items() if run.row else ():
            self._reused[step] += counts.get(TaskState.DONE, 0)

    def closed(self, run: SourceRun) -> None:
        """Its numbers will not change any more, so they are added up for good."""
        if run in self.open:
            _add(self._closed, run)
            self.open.remove(run)
            self.done += run.done

    def files_text(self) -> str:
        """How many sources are through, of all; empty where there is only one."""
        return f"{self.done} of {self.found} files done" if self.found > 1 else ""

    def steps(self) -> list[StepMeter]:
        """Read the open ledgers again and add everything up."""
        sums = {
            name: _Sum(Counter(past.counts), past.executed, past.adopted)
            for name, past in self._closed.items()
        }
        for run in self.open:
            _add(sums, run)
        return [self._step(name, found) for name, found in sums.items()]

    def _step(self, name: str, found: _Sum) -> StepMeter:
        now_s = time.monotonic()
        counts = found.counts
        if found.executed or any(counts[state] for state in HELD):
            self._began_s.setdefault(name, now_s)
        took_s = now_s - self._began_s.get(name, now_s)
        new = found.executed + found.partly
        rate_per_s = new / took_s if found.executed and took_s > 0 else None
        unfinished = sum(n for state, n in counts.items() if state not in FINISHED) - found.partly
        # A step that only waits for others will take as long as they do.
        foreseen = rate_per_s and unfinished > counts[TaskState.BLOCKED]
        return StepMeter(
            name=name,
            total=counts.total(),
            done=counts[TaskState.DONE],
            reused=self._reused[name] + found.adopted,
            failed=counts[TaskState.FAILED],
            cancelled=counts[TaskState.CANCELLED],
            partly=found.partly,
            rate_per_s=rate_per_s,
            left_s=unfinished / rate_per_s if rate_per_s and foreseen else None,
        )


def _add(sums: dict[str, _Sum], run: SourceRun) -> None:
    """A source's numbers as they are now, onto the sums by step."""
    row = run.look()
    if row is None:
        return
    for spec in row.job.steps:
        one = sums.setdefault(spec.name, _Sum())
        one.counts.update(row.counts.get(spec.name, {}))
        one.executed += run.stats.executed[spec.name]
        one.adopted += run.stats.adopted[spec.name]
    # Only tasks that have run for a while are `running`, and only these have progress to tell.
    if run.ledger is not None and row.total(TaskState.RUNNING):
        for task in run.ledger.tasks(row.job.key, states=HELD):
            sums[task.step].partly += task.progress
