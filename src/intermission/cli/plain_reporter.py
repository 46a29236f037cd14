"""The progress of a run as plain lines, for a pipe or a log file."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from intermission.cli.formatting import count, duration, near, rate
from intermission.cli.progress_stats import Meter, StepMeter

if TYPE_CHECKING:
    from intermission.operations import SourceRun

EVERY_S = 2.0


class PlainReporter:
    """A line at the start and the end of a source, and at most one every two seconds between."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._meter = Meter()
        self._last_s = time.monotonic()
        self._last = ""

    def found(self, sources: int) -> None:
        self._meter.found = sources

    def opened(self, run: SourceRun) -> None:
        self._meter.opened(run)
        total = run.row.total() if run.row else 0
        known = f"{run.reused} of {count(total, 'task')} done before" if run.reused else "started"
        self._print(f"{near(run.path)}: {known}")

    def tick(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s < EVERY_S:
            return
        self._last_s = now_s
        steps = [step for step in self._meter.steps() if step.total and not step.ended]
        line = ", ".join(filter(None, [self._meter.files_text(), *map(_step_text, steps)]))
        if steps and line != self._last:
            self._print(line)
            self._last = line

    def draining(self, reason: str) -> None:
        self._print(drain_text(reason))

    def closed(self, run: SourceRun) -> None:
        self._meter.closed(run)
        for warning in run.stats.warnings:
            self._print(f"{near(run.path)}: warning: {warning}")
        self._print(f"{near(run.path)}: {end_text(run)}")

    def finish(self) -> None:
        """Nothing is left open."""

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def drain_text(reason: str) -> str:
    return f"stopping ({reason}): finishing what can finish in time; once more stops at once"


def end_text(run: SourceRun) -> str:
    """How a source ended, in a word or a sentence."""
    if run.error is not None:
        return str(run.error)
    if run.row is None:
        return "not started"
    if run.row.state == "draining":
        return "stopped"
    return f"{run.row.state}: {run.row.reason}" if run.row.reason else str(run.row.state)


def _step_text(step: StepMeter) -> str:
    text = " ".join([f"{step.name} {step.done}/{step.total}", *step.losses])
    if step.rate_per_s is None:
        return text
    left = f", {duration(step.left_s)} left" if step.left_s is not None else ""
    return f"{text} ({rate(step.rate_per_s)}{left})"
