"""The end of a run: its outputs and its summary."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from intermission.cli.command import AGAIN, say
from intermission.cli.formatting import count, duration, near, skipped_text
from intermission.errors import Interrupted

if TYPE_CHECKING:
    from intermission.operations import RunReport, SourceRun


def print_outputs(report: RunReport) -> None:
    """The paths of the outputs, one a line, on standard output; those in subfolders last."""
    for run in report.sources:
        for path in sorted(run.outputs, key=lambda path: str(path).count("/")):
            print(near(path))
    sys.stdout.flush()


def print_summary(report: RunReport, took_s: float | None) -> None:
    """What was reused, run and lost, on standard error; without a time, what was lost alone."""
    for run in report.sources:
        _print_failures(run)
    if took_s is not None and report.skipped:
        say(skipped_text(report.skipped))
    if took_s is not None and any(run.row for run in report.sources):
        say(_tasks_line(report, took_s))
    if report.exit_code == Interrupted.exit_code:
        say(f"interrupted ({report.interrupted}). {AGAIN}")


def _tasks_line(report: RunReport, took_s: float) -> str:
    total = sum(run.row.total() for run in report.sources if run.row)
    reused = sum(run.reused + run.stats.adopted.total() for run in report.sources)
    executed = sum(run.stats.executed.total() for run in report.sources)
    line = f"reused {reused:,} of {count(total, 'task')}, ran {executed:,} in {duration(took_s)}"
    if len(report.sources) > 1:
        done = sum(run.done for run in report.sources)
        line += f"; {done:,} of {count(len(report.sources), 'source')} done"
    return line


def _print_failures(run: SourceRun) -> None:
    if not run.failures or run.row is None:
        return
    key = run.row.job.key[:10]
    say(f"{near(run.path)}: {'gaps' if run.done else 'failed'}")
    for task in run.failures:
        say(f"  {task.name}: {task.message} ({count(task.attempts, 'attempt')})")
    failed = run.row.total(run.failures[0].state)
    if failed > len(run.failures):
        more = failed - len(run.failures)
        say(f"  and {more:,} more: intermission inspect {key} --state failed{_where(run)}")
    say(f"  more: intermission logs {key} '{run.failures[0].name}'{_where(run)}")


def _where(run: SourceRun) -> str:
    """How to find the job from here, where it is not below the working directory."""
    if not isinstance(run.path, Path):
        return f" --in {shlex.quote(str(run.path))}"
    below = run.path.is_relative_to(Path.cwd())
    return "" if below else f" --in {shlex.quote(str(run.path.parent))}"
