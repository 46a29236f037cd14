"""A simulated machine: its clock, the pipelines installed on it, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from intermission.errors import NoPipeline
from intermission.model import Job
from intermission.pipeline import Pipeline
from intermission.ports.clock import Clock


class Host:
    """What the processes of one machine share."""

    def __init__(self, name: str, folder: Path, clock: Clock, *pipelines: Pipeline) -> None:
        self.name = name
        self.folder = folder / name
        """Logs, locks and working files."""
        self.clock = clock
        self._pipelines = {one.name: one for one in pipelines}
        self._trouble: Callable[[], Exception] | None = None
        self._trouble_until_s = 0.0

    @property
    def codes(self) -> frozenset[str]:
        """What a worker that starts here now can run."""
        return frozenset(one.code for one in self._pipelines.values())

    def install(self, pipeline: Pipeline) -> None:
        """In the place of another version, if there is one: slots that start now load this one."""
        self._pipelines[pipeline.name] = pipeline

    def remove(self, name: str) -> None:
        self._pipelines.pop(name, None)

    def pipeline(self, job: Job) -> Pipeline:
        """What is installed under the name of a job's pipeline, whatever its version."""
        if job.pipeline not in self._pipelines:
            raise NoPipeline(f"{job.pipeline} is not installed on {self.name}.")
        return self._pipelines[job.pipeline]

    def breaks(self, trouble: Callable[[], Exception], seconds: float) -> None:
        """Every step that starts here meets an error, for so long."""
        self._trouble = trouble
        self._trouble_until_s = self.clock.monotonic_s() + seconds

    def use(self) -> None:
        """A step starts: raise what it meets."""
        if self._trouble is not None and self.clock.monotonic_s() < self._trouble_until_s:
            raise self._trouble()
