"""The progress of a run on a terminal: one bar a step, reused work shaded.

It is drawn when the worker has a moment, never by a thread of its own: slots are forked from
a process that must have a single one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from intermission.cli.formatting import duration, near, rate
from intermission.cli.plain_reporter import drain_text, end_text
from intermission.cli.progress_stats import Meter, StepMeter

if TYPE_CHECKING:
    from intermission.operations import SourceRun

EVERY_S = 0.1
BAR_WIDTH = 32
SHADES = {"reused": ("▒", "+"), "new": ("█", "#"), "lost": ("x", "x"), "rest": ("░", ".")}
STYLES = {"reused": "cyan dim", "new": "green", "lost": "red", "rest": "dim"}


class RichReporter:
    """Redraws at most ten times a second; lines about sources scroll above the bars."""

    def __init__(self, console: Console, pipeline: str) -> None:
        self._console = console
        self._pipeline = pipeline
        self._meter = Meter()
        self._last_s = 0.0
        self._note = ""
        self._live = Live(console=console, auto_refresh=False)

    def found(self, sources: int) -> None:
        self._meter.found = sources

    def opened(self, run: SourceRun) -> None:
        self._meter.opened(run)
        self._live.start()
        self._draw()

    def tick(self) -> None:
        if self._live.is_started and time.monotonic() - self._last_s >= EVERY_S:
            self._draw()

    def draining(self, reason: str) -> None:
        self._note = drain_text(reason)

    def closed(self, run: SourceRun) -> None:
        self._meter.closed(run)
        for warning in run.stats.warnings:
            line = Text(f"{near(run.path)}: warning: {warning}")
            self._console.print(line, style="yellow")
        if not run.done:
            line = Text(f"{near(run.path)}: {end_text(run)}")
            self._console.print(line, style="red" if run.error or run.failures else "yellow")
        self.tick()

    def finish(self) -> None:
        """Draw the end as it is, and give the terminal back."""
        if self._live.is_started:
            self._draw()
            self._live.stop()

    def _draw(self) -> None:
        self._last_s = time.monotonic()
        self._live.update(self._view(), refresh=True)

    def _view(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(justify="right", style="bold")
        grid.add_column()
        grid.add_column(justify="right")
        grid.add_column(style="dim")
        for step in self._meter.steps():
            total = str(step.total) if step.total else "?"
            note = self._step_note(step)
            grid.add_row(step.name, self._bar(step), f"{step.done}/{total}", note)
        lines: list[RenderableType] = [self._title(), grid]
        if self._note:
            lines.append(Text(self._note, style="yellow"))
        return Group(*lines)

    def _title(self) -> Text:
        opened = self._meter.open
        names = ", ".join(near(run.path) for run in opened[:3])
        more = f" and {len(opened) - 3} more" if len(opened) > 3 else ""
        done = self._meter.files_text()
        title = "  ".join(filter(None, [self._pipeline, done, f"{names}{more}"]))
        return Text(title, no_wrap=True, overflow="ellipsis")

    def _bar(self, step: StepMeter) -> Text:
        shown = min(BAR_WIDTH, max(8, self._console.width - 48))
        total = max(step.total, 1)
        ends = {
            "reused": min(step.reused, step.done),
            "new": step.done + step.partly,
            "lost": step.done + step.partly + step.lost,
            "rest": total,
        }
        plain = not self._console.encoding.startswith("utf")
        bar, drawn = Text(), 0
        for part, end in ends.items():
            cells = shown if part == "rest" else int(min(end / total, 1) * shown)
            bar.append(SHADES[part][plain] * max(0, cells - drawn), STYLES[part])
            drawn = max(drawn, cells)
        return bar

    def _step_note(self, step: StepMeter) -> str:
        notes = [f"{step.reused} reused"] if step.reused else []
        notes += step.losses
        if step.rate_per_s is not None and not step.ended:
            notes.append(rate(step.rate_per_s))
        if step.left_s is not None:
            notes.append(f"{duration(step.left_s)} left")
        return ", ".join(notes)
