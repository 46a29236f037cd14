"""`run`: sources through a pipeline in this process, continuing whatever was begun before."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from intermission.backends.edited_outputs import keep_edited
from intermission.backends.executor.local import LocalExecutor
from intermission.backends.executor.reaper import Reaper
from intermission.backends.interruption.imds import watching
from intermission.backends.work_source.open_job import OpenJob, job_row
from intermission.backends.work_source.own_jobs import OwnJobs
from intermission.backends.work_source.worker_locks import worker_name
from intermission.composition.app import App, Submission, start_reaper
from intermission.composition.locations import Location
from intermission.engine.lease_renewer import LeaseRenewer
from intermission.engine.publish import publish
from intermission.engine.step_stats import StepStats
from intermission.engine.worker import Worker
from intermission.errors import EnvironmentFault, IntermissionError, Interrupted, WorkspaceBusy
from intermission.maintenance.preview import Previews
from intermission.model import FINISHED, Job, JobRow, JobState, TaskRow, TaskState
from intermission.pipeline import Pipeline
from intermission.ports.ledger import Ledger, every_receipt, every_task
from intermission.scratch import Scratch, source_entry

FAILURES_SHOWN = 5
SOME_FAILED = 3
"""The exit code of a run of which some sources are done."""
log = logging.getLogger(__name__)


Read = Callable[[Sequence[str], Pipeline], tuple[Sequence[str], Mapping[str, Any]]]


@dataclass
class SourceRun:
    """One source's part in a run: its job, and what became of it."""

    path: Location
    job: Job | None = None
    row: JobRow | None = None
    """The job as it was last seen."""
    reused: int = 0
    stats: StepStats = field(default_factory=StepStats)
    outputs: list[Path | str] = field(default_factory=list[Path | str])
    """Paths, or URLs of what is elsewhere."""
    failures: list[TaskRow] = field(default_factory=list[TaskRow])
    """The first tasks that failed for good."""
    error: IntermissionError | None = None
    ledger: Ledger | None = None
    """Open while the source is being worked on."""

    def look(self) -> JobRow | None:
        """Read the job's state and counts again, if its ledger is still open."""
        if self.ledger is not None and self.job is not None:
            self.row = job_row(self.ledger, self.job.key)
        return self.row

    @property
    def done(self) -> bool:
        return self.error is None and self.row is not None and self.row.state is JobState.DONE


class Reporter(Protocol):
    """Who watches a run. All calls come from the worker's own thread."""

    def found(self, sources: int) -> None:
        """The run is about to begin with so many sources; they are opened as there is room."""
        ...

    def opened(self, run: SourceRun) -> None:
        """A source's job is known; its counts are what was finished before."""
        ...

    def tick(self) -> None:
        """Something may have changed; called many times a second."""
        ...

    def draining(self, reason: str) -> None:
        """The worker was asked to stop, and finishes what can finish in time."""
        ...

    def closed(self, run: SourceRun) -> None:
        """A source has come to its end, one way or another; its ledger is open a last time."""
        ...


@dataclass(frozen=True)
class RunReport:
    sources: Sequence[SourceRun]
    interrupted: str | None = None
    """Why the run stopped before its end."""
    skipped: int = 0
    """Files of folders that the pipeline does not take."""

    @property
    def exit_code(self) -> int:
        """0 done, 3 some sources failed, 75 interrupted; else what stopped the worst of them."""
        undone = [run for run in self.sources if not run.done]
        if not undone:  # even if it was asked to stop meanwhile
            return 0
        if self.interrupted is not None:
            return Interrupted.exit_code
        if len(undone) < len(self.sources):
            return SOME_FAILED
        return max(1 if run.error is None else run.error.exit_code for run in undone)


def run(
    app: App,
    ref: str,
    places: Sequence[str],
    params: Mapping[str, Any],
    reporter: Reporter,
    *,
    include: Sequence[str] = (),
    fresh: bool = False,
    thorough: bool = False,
    expected: str | None = None,
    read: Read | None = None,
    reaper: Reaper | None = None,
) -> RunReport:
    """Run a pipeline over sources to its end, or to an interruption.

    With `expected`, only if the job is the one with that key. `read` tells the sources among
    `places` from the pipeline's own options, once the pipeline is loaded. `reaper` is one that
    was started before, by a caller that had to look into a bucket first.
    """
    reaper = reaper or start_reaper()
    try:
        pipeline = app.catalog.add(ref)
        if read is not None:
            places, own = read(places, pipeline)
            params = {**params, **own}
        pipeline.bind(params)
        found = app.sources(places, include, pipeline)
        runs = [SourceRun(place) for place in found.sources]
    except BaseException:
        reaper.close()
        raise
    reporter.found(len(runs))
    host = _Host(app, pipeline, params, reporter, fresh, thorough, expected)
    settings, clock = app.settings, app.clock
    host.worker = worker = Worker(
        OwnJobs(host.open_jobs(runs), host.name, settings, clock, host.end),
        LeaseRenewer(
            host.name,
            clock,
            lease_ttl_s=settings.lease_ttl_s,
            renew_every_s=settings.renew_every_s,
        ),
        LocalExecutor(reaper, settings.slots),
        clock,
        drain_s=settings.drain_s,
        on_tick=lambda: host.tick(worker),
    )
    with watching(settings, clock, worker.drain), closing(host.previews):
        reason = worker.run()
    return RunReport(runs, reason, found.skipped)


@dataclass
class _Host:
    """Turns sources into open jobs when the worker has room, and looks after their ends."""

    app: App
    pipeline: Pipeline
    params: Mapping[str, Any]
    reporter: Reporter
    fresh: bool
    thorough: bool
    expected: str | None
    name: str = field(default_factory=worker_name)
    worker: Worker | None = None
    previews: Previews = field(default_factory=Previews)
    _drain_told: bool = False
    _open: dict[str, tuple[SourceRun, Submission]] = field(
        default_factory=dict[str, tuple[SourceRun, Submission]]
    )

    def open_jobs(self, runs: Sequence[SourceRun]) -> Iterator[OpenJob | None]:
        """One source after the other; those that others work on, again later."""
        waiting = deque((0.0, run) for run in runs)
        while waiting:
            due_s, run = waiting[0]
            if due_s > self.app.clock.monotonic_s():
                yield None
                continue
            waiting.popleft()
            try:
                opened = self._begin(run)
            except WorkspaceBusy as e:
                if not due_s:
                    log.warning("%s", e.message)
                again_s = self.app.clock.monotonic_s() + self.app.settings.renew_every_s
                waiting.append((again_s, run))
            else:
                if opened is not None:
                    yield opened

    def _begin(self, run: SourceRun) -> OpenJob | None:
        """The open job of a source; None if there is nothing to be done about it."""
        try:
            submission = self.app.submit(
                self.pipeline,
                run.path,
                self.params,
                fresh=self.fresh,
                thorough=self.thorough,
                expected=self.expected,
                on_lost=self._lost,
            )
        except WorkspaceBusy:
            raise
        except IntermissionError as e:
            run.error = e
            self.reporter.closed(run)
            return None
        run.job, run.ledger, run.reused = submission.job, submission.ledger, submission.reused
        run.error = self._unable(run.look())
        if run.error is not None:
            self.reporter.closed(run)
            run.ledger = None
            submission.held.close()
            return None
        opened = OpenJob(
            workspace=submission.workspace,
            job=submission.job,
            ledger=submission.ledger,
            store=submission.store,
            worker=self.name,
            settings=self.app.settings,
            delays_s=self.app.settings.retry_delays_s,
            stats=run.stats,
            resources=submission.held,
            ref=self.app.catalog.of(submission.job).ref,
        )
        self._open[opened.name] = (run, submission)
        self.previews.watch(opened, self.pipeline)
        self.reporter.opened(run)
        return opened

    def _lost(self, _: Exception) -> None:
        """Called by another thread: a workspace is somebody else's now. `tick` says so."""
        if self.worker is not None:
            self.worker.kill_work()

    def end(self, opened: OpenJob) -> None:
        """The worker is through with a job and is about to close its ledger."""
        run, submission = self._open.pop(opened.name)
        row = run.look()
        try:
            if row is not None and row.state is JobState.DONE:
                run.outputs = _publish_all(submission, run.stats.warnings.append)
        except IntermissionError as e:
            run.error = e
        if submission.owned is not None and row is not None and row.state is JobState.DONE:
            _clear(submission)
        if row is not None and row.total(TaskState.FAILED):
            failed = every_task(submission.ledger, submission.job.key, states=[TaskState.FAILED])
            run.failures = list(islice(failed, FAILURES_SHOWN))
        self.reporter.closed(run)
        run.ledger = None

    def tick(self, worker: Worker) -> None:
        for _, submission in self._open.values():
            if submission.owned is not None:
                submission.owned.check()
        if worker.drain_reason is not None and not self._drain_told:
            self._drain_told = True
            self.reporter.draining(worker.drain_reason)
        self.reporter.tick()

    def _unable(self, row: JobRow | None) -> EnvironmentFault | None:
        """Why this worker could never finish a job: nobody would ever claim some of it."""
        if row is None or row.state is JobState.DONE:
            return None
        for spec in row.job.steps:
            if spec.needs is None or spec.needs in self.app.settings.can:
                continue
            counts = row.counts.get(spec.name, {})
            planned = spec.plan is not None and TaskState.DONE in row.counts.get(spec.plan, {})
            if counts.keys() - FINISHED or not (counts or planned):
                return EnvironmentFault(
                    f"step {spec.name} needs {spec.needs!r}, which no worker here offers.",
                    remedy=f"If this machine has it, say so with --can {spec.needs}; otherwise "
                    "run the same command where it is.",
                )
        return None


def _clear(submission: Submission) -> None:
    """What was fetched for a job that is done is of no more use here."""
    receipts = every_receipt(submission.ledger, submission.job.key)
    keys = {file.sha256 for _, output in receipts for file in output.files}
    Scratch(submission.workspace.scratch).drop({source_entry(submission.job.source), *keys})


def _publish_all(submission: Submission, warn: Callable[[str], object]) -> list[Path | str]:
    """Every output of a done job, in its place; what was published already costs a stat.

    The paths are those a person would open: of the front, where the pipeline has one.
    """
    workspace, job = submission.workspace, submission.job
    if workspace.open_outputs is None:
        return []
    outputs = workspace.open_outputs()
    scratch = workspace.scratch
    done = [
        (job.step(row.step), row, out) for row, out in every_receipt(submission.ledger, job.key)
    ]
    done.sort(key=lambda one: one[0].entrypoints)  # last: it leads to all the others
    has_front = any(spec.entrypoints for spec in job.steps)
    paths: list[Path | str] = []
    for spec, row, output in done:
        if spec.publish is not None:
            what = job, spec, row.index, output.files
            keep = partial(keep_edited, warn=warn)
            names = publish(submission.store, outputs, *what, scratch, keep)
            if spec.entrypoints or not has_front:
                paths += [outputs.local_path(name) or f"{outputs.uri}/{name}" for name in names]
    return paths
