"""Intermission as `run` runs it: submit, plan, claim, a slot process, complete, done."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from judging import require

from intermission.operations import App, RunReport, SourceRun, run
from intermission.settings import Settings

SLOTS = 2
SETTINGS = f"run with {SLOTS} slots; WAL, synchronous=FULL"


class Silent:
    """A reporter that shows nothing, and may be told to watch something."""

    def __init__(self, on_tick: Callable[[SourceRun], None] | None = None) -> None:
        self._on_tick = on_tick
        self._run: SourceRun | None = None

    def found(self, sources: int) -> None:
        pass

    def opened(self, run: SourceRun) -> None:
        self._run = run

    def tick(self) -> None:
        if self._on_tick is not None and self._run is not None:
            self._on_tick(self._run)

    def draining(self, reason: str) -> None:
        pass

    def closed(self, run: SourceRun) -> None:
        pass


def light(count: int, folder: Path) -> float:
    return _timed("light", count, folder)


def receipted(count: int, folder: Path) -> float:
    return _timed("receipted", count, folder)


def _timed(pipeline: str, count: int, folder: Path) -> float:
    began_s = time.perf_counter()
    report = run_pipeline(pipeline, count, folder, Silent())
    took_s = time.perf_counter() - began_s
    (source,) = report.sources
    done = sum(source.stats.executed.values())
    require(source.done and done == count + 1, f"{done} tasks executed, error {source.error}")
    return took_s


def run_pipeline(pipeline: str, count: int, folder: Path, reporter: Silent) -> RunReport:
    """Run a pipeline of `count` no-op tasks over the one source in a folder, or continue it."""
    source = folder / "source.txt"
    if not source.exists():
        source.write_text("nothing")
    return run(App(Settings(slots=SLOTS)), ref(pipeline), [str(source)], {"count": count}, reporter)


def ref(pipeline: str) -> str:
    return f"{Path(__file__).with_name('pipelines.py')}:{pipeline}"
