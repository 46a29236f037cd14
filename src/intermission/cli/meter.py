"""What a run has done and has yet to do, step by step, added up over its sources.

Rates and remaining times come from the work of this run alone: what was finished before
says nothing about how fast the rest will go.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from intermission.app import SourceRun
from intermission.model import FINISHED, HELD, TaskState

_IN_ORDER = (TaskState.LEASED, TaskState.RUNNING)


@dataclass(frozen=True)
class StepMeter:
    """One step's tasks by what became of them."""

    name: str
    total: int
    done: int
    reused: int
    failed: int
    running: int
    partly: float
    """The progress of the tasks that are running, added up."""
    rate_per_s: float | None
    left_s: float | None

    @property
    def ended(self) -> bool:
        return self.total > 0 and self.done + self.failed == self.total


class Meter:
    """Feed it the sources as they open; ask it for the steps whenever there is time."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.runs: list[SourceRun] = []
        self._reused: Counter[str] = Counter()
        self._began_s: dict[str, float] = {}

    def opened(self, run: SourceRun) -> None:
        self.runs.append(run)
        for step, counts in run.row.counts.items() if run.row else ():
            self._reused[step] += counts.get(TaskState.DONE, 0)

    def steps(self) -> list[StepMeter]:
        """Read the open ledgers again and add everything up."""
        counts: dict[str, Counter[TaskState]] = {}
        partly: dict[str, float] = {}
        for run in self.runs:
            row = run.look()
            if row is None:
                continue
            for spec in row.job.steps:
                counts.setdefault(spec.name, Counter()).update(row.counts.get(spec.name, {}))
            for step, progress in _running(run):
                partly[step] = partly.get(step, 0.0) + progress
        return [self._step(name, found, partly.get(name, 0.0)) for name, found in counts.items()]

    def _step(self, name: str, counts: Counter[TaskState], partly: float) -> StepMeter:
        now_s = time.monotonic()
        executed = sum(run.tally.executed[name] for run in self.runs)
        running = sum(counts[state] for state in HELD)
        if running or executed:
            self._began_s.setdefault(name, now_s)
        took_s = now_s - self._began_s.get(name, now_s)
        rate_per_s = (executed + partly) / took_s if executed and took_s > 0 else None
        unfinished = sum(n for state, n in counts.items() if state not in FINISHED) - partly
        # A step that only waits for others will take as long as they do.
        foreseen = rate_per_s and unfinished > counts[TaskState.BLOCKED]
        return StepMeter(
            name=name,
            total=counts.total(),
            done=counts[TaskState.DONE],
            reused=self._reused[name] + sum(run.tally.adopted[name] for run in self.runs),
            failed=counts[TaskState.FAILED] + counts[TaskState.CANCELLED],
            running=running,
            partly=partly,
            rate_per_s=rate_per_s,
            left_s=unfinished / rate_per_s if rate_per_s and foreseen else None,
        )

    @property
    def took_s(self) -> float:
        return time.monotonic() - self.started_s

    @property
    def done(self) -> int:
        """Sources that are through."""
        return sum(run.done for run in self.runs)


def _running(run: SourceRun) -> Iterator[tuple[str, float]]:
    """The progress of tasks that have run long enough to report any."""
    if run.ledger is None or run.job is None or run.row is None:
        return
    if run.row.total(TaskState.RUNNING):
        for task in run.ledger.tasks(run.job.key, states=_IN_ORDER):
            yield task.step, task.progress
