"""`run` for Python programs: sources through a pipeline in this process and its slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from intermission.client.given import Sources, app_with, places_of
from intermission.errors import EnvironmentFault, Interrupted, os_faults
from intermission.operations import SourceRun, start_reaper
from intermission.operations import run as run_sources
from intermission.operations.documents import JobDocument, RunDocument

TELL_EVERY_S = 0.2
OnProgress = Callable[[JobDocument], object]


def run(
    pipeline: str,
    sources: Sources,
    *,
    on_progress: OnProgress | None = None,
    include: Sequence[str] = (),
    fresh: bool = False,
    verify: bool = False,
    settings: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    **more_params: Any,
) -> RunDocument:
    """Run a pipeline over sources; continue where an earlier run stopped.

    `pipeline` is an installed one, `module:name` or `path/to/file.py:name`. Its parameters are
    keyword arguments; `params` takes those whose names this function uses itself. `settings` go
    before those of the environment and of files, as in `settings={"slots": 2}`.

    `on_progress` gets a job whenever its counts have changed, a few times a second at most, in
    the calling thread. What it raises ends the run.

    A task that failed for good is reported in the document, whose `raise_for_failure()` raises.
    Raises `UsageError`, `SourceError` or `EnvironmentFault` when the run cannot begin or go on,
    and `Interrupted` when it was asked to stop; progress is saved.
    """
    app = app_with(settings)
    places = places_of(sources)
    with os_faults(f"running {pipeline}", EnvironmentFault):
        report = run_sources(
            app,
            pipeline,
            places,
            {**(params or {}), **more_params},
            _Progress(on_progress or (lambda _: None)),
            include=include,
            fresh=fresh,
            thorough=verify,
            # The caller's process has threads and open files that no slot may inherit.
            reaper=start_reaper(own_interpreter=True),
        )
    if report.exit_code == Interrupted.exit_code:
        raise Interrupted(
            f"interrupted ({report.interrupted}).",
            remedy="Progress is saved; call run() again with the same arguments.",
        )
    return RunDocument.of(report)


class _Progress:
    """Tells the caller of every open job that has changed."""

    def __init__(self, tell: OnProgress) -> None:
        self._tell = tell
        self._open: dict[int, SourceRun] = {}
        self._told: dict[int, JobDocument] = {}
        self._last_s = 0.0

    def found(self, sources: int) -> None:
        """Each tells its own progress."""

    def opened(self, run: SourceRun) -> None:
        self._open[id(run)] = run
        self._look(run)

    def tick(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s >= TELL_EVERY_S:
            self._last_s = now_s
            for run in self._open.values():
                self._look(run)

    def draining(self, reason: str) -> None:
        """The caller learns it by `Interrupted`."""

    def closed(self, run: SourceRun) -> None:
        if self._open.pop(id(run), None) is not None:
            self._look(run)

    def _look(self, run: SourceRun) -> None:
        row = run.look()
        if row is None:
            return
        job = JobDocument.of(row, run.path)
        if self._told.get(id(run)) != job:
            self._told[id(run)] = job
            self._tell(job)
