"""Where things live and which backend keeps them: local sources, each with its workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.store.local import LocalStore
from intermission.engine.discover import find_sources, find_workspaces
from intermission.engine.gc import Swept, collect
from intermission.engine.plan import Plans, chunks, expand, make_job, plan_steps
from intermission.engine.rebuild import adopt_all, rebuild, remember_job
from intermission.engine.receipt import peek, quarantine, receipt_key
from intermission.engine.record import output_text
from intermission.engine.source import identify
from intermission.engine.verify import verify
from intermission.engine.why import forecast
from intermission.engine.worker import worker_name
from intermission.engine.workspace import Workspace, alive, dead, living
from intermission.errors import (
    AlreadyExists,
    CorruptArtifact,
    LedgerError,
    SourceError,
    UsageError,
    fault_from_os,
)
from intermission.model import Job, JobState, Output, Task, TaskState, identity
from intermission.pipeline import Pipeline
from intermission.ports.clock import Clock, SystemClock
from intermission.ports.ledger import Ledger
from intermission.ports.store import Store
from intermission.settings import Settings
from intermission.telemetry import reached

LEDGER_NAME = "ledger.sqlite"


@dataclass(frozen=True)
class Submission:
    """A job in its ledger, ready for a worker."""

    workspace: Workspace
    job: Job
    ledger: Ledger
    store: Store
    reused: int
    """Tasks that were done when it was submitted."""


class App:
    """The parts, put together by these settings."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()

    def workspace(self, source: Path, output: str | None = None) -> Workspace:
        """The workspace beside a local source; `output` names the folder for its outputs."""
        folder = source.parent / self.settings.workspace_name / source.name
        outputs = None
        if output is not None:
            outputs = self._outputs(source, output, folder / ".tmp")
        return Workspace(
            folder=folder,
            open_store=partial(LocalStore, folder),
            open_outputs=outputs,
            open_ledger=partial(_open_ledger, folder / LEDGER_NAME),
        )

    def _outputs(self, source: Path, output: str, temp: Path) -> Callable[[], LocalStore]:
        if self.settings.output_dir is None:
            place = source.parent
            owner = source.name
        else:
            place = self.settings.output_dir.expanduser().resolve()
            owner = str(source.resolve())
            output = ""
            temp = place / self.settings.workspace_name / ".tmp"  # on the same file system
        claims = LocalStore(place / self.settings.workspace_name)
        name = _claimed_name(claims, f"outputs/{output}".rstrip("/"), source, owner)
        return partial(LocalStore, place / output / name, temp=temp)

    def sources(self, places: Sequence[str], include: Sequence[str] = ()) -> list[Path]:
        name = self.settings.workspace_name
        return find_sources(places, include=include, workspace_name=name)

    def submit(
        self,
        pipeline: Pipeline,
        ref: str,
        path: Path,
        params: Mapping[str, Any],
        *,
        fresh: bool = False,
        thorough: bool = False,
        expected: str | None = None,
    ) -> Submission:
        """Put the job for a source into its ledger, or find it there, and look at its receipts.

        A job that had ended in failure starts again: the same command always continues. With
        `expected`, only if it is the job with that key.
        """
        if not _is_text(path.name):
            raise SourceError(
                f"the name {path.name!r} is not UTF-8, so it cannot name outputs.",
                remedy="Rename the file.",
            )
        workspace = self.workspace(path, pipeline.output)
        store = workspace.open_store()
        store.self_test()
        job = make_job(pipeline, ref, identify(path, store), params)
        if expected not in (None, job.key):
            raise UsageError(
                f"{pipeline.name} over {path} is no longer job {expected[:10]}.",
                remedy="The source or the pipeline changed since: `intermission run` it anew.",
            )
        ledger = workspace.open_ledger()
        scratch = workspace.folder / "scratch"
        try:
            if fresh:
                _start_over(ledger, store, job, workspace)
            remember_job(store, job)
            if not ledger.submit(job, expand(job, {})):
                verify(ledger, store, job, scratch, self.clock, thorough=thorough)
                if expected is None:  # `retry` has said what to try again
                    _retry_stopped(ledger, job)
            reached("after-submit")
            reused = ledger.jobs(job.key)[0].total(TaskState.DONE)
        except BaseException:
            ledger.close()
            raise
        return Submission(workspace, job, ledger, store, reused)

    def forecast(
        self, pipeline: Pipeline, ref: str, path: Path, params: Mapping[str, Any]
    ) -> tuple[Job, Iterator[tuple[Task, bool, str]]]:
        """The job of a source, and what a run would do with the tasks that can be named now.

        Nothing is changed: a source that has no workspace gets none.
        """
        workspace = self.workspace(path)
        store = workspace.open_store()
        job = make_job(pipeline, ref, identify(path, store, remember=False), params)
        light = _light_outputs(workspace, job)
        plans = _known_plans(store, job, workspace.folder / "scratch", light)
        return job, forecast(store, job, plans, light)

    def workspaces(self, place: Path) -> Iterator[tuple[Path, Workspace]]:
        """(source, workspace) of every workspace at or below a place."""
        for folder in find_workspaces(place, self.settings.workspace_name):
            source = folder.parent.parent / folder.name
            yield source, self.workspace(source)

    def rebuild(self, source: Path) -> dict[str, tuple[int, int]]:
        """A new ledger from the receipts of a source's workspace; the old one is kept aside."""
        workspace = self.workspace(source)
        if not workspace.folder.is_dir():
            raise UsageError(f"{source} has no workspace.", remedy="Run a pipeline over it first.")
        if workers := living(workspace):
            raise UsageError(
                f"a worker is at work in {workspace.folder}: {', '.join(workers)}.",
                remedy="Interrupt it first; progress is saved.",
            )
        stamp = self.clock.now_ms()
        for suffix in ("", "-wal", "-shm"):
            path = workspace.folder / f"{LEDGER_NAME}{suffix}"
            if path.exists():
                path.rename(workspace.folder / f"{LEDGER_NAME}.{stamp}.old{suffix}")
        ledger = workspace.open_ledger()
        worker = worker_name()
        try:
            with alive(workspace, worker):
                scratch = workspace.folder / "scratch"
                return rebuild(ledger, workspace.open_store(), scratch, worker)
        finally:
            ledger.close()

    def gc(self, workspace: Workspace, *, grace_s: float, dry_run: bool) -> Swept:
        if grace_s < self.settings.lease_ttl_s:
            raise UsageError(
                f"a grace of {grace_s:g} s is shorter than a lease, "
                f"{self.settings.lease_ttl_s:g} s.",
                remedy="A task may still be committing its files: give it longer.",
            )
        if living(workspace):
            return Swept(0, 0, 0, in_use=True)
        return collect(workspace.open_store(), self.clock, grace_s=grace_s, dry_run=dry_run)


def _claimed_name(claims: Store, prefix: str, source: Path, owner: str) -> str:
    """The source's stem, or its whole name where another source took the stem first."""
    names = (source.stem, source.name, f"{source.name}-{identity(owner)[:8]}")
    for name in names:
        try:
            claims.create(f"{prefix}/{name}", owner.encode())
        except AlreadyExists:
            if claims.read(f"{prefix}/{name}") != owner.encode():
                continue
        return name
    raise UsageError(
        f"every name for the outputs of {source} is taken: {', '.join(names)}.",
        remedy="Give another --output-dir.",
    )


def _retry_stopped(ledger: Ledger, job: Job) -> None:
    """The same command continues: what failed in an earlier run gets a fresh set of attempts.

    A gap is left as it is; the job goes on, or went on, without it.
    """
    (row,) = ledger.jobs(job.key)
    if row.state in (JobState.FAILED, JobState.CANCELLED):
        ledger.retry(job.key)
    elif row.total(TaskState.FAILED):
        failed = ledger.tasks(job.key, states=[TaskState.FAILED])
        ids = [task.id for task in failed if not job.step(task.step).gap]
        if ids:
            ledger.retry(job.key, ids)


def _is_text(name: str) -> bool:
    """Whether a file's name is UTF-8; bytes that are not come as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _open_ledger(path: Path) -> Ledger:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise fault_from_os(e, "making the workspace", LedgerError, where=path.parent) from e
    return SqliteLedger(path)


def _light_outputs(workspace: Workspace, job: Job) -> dict[str, Output]:
    """By key, the results of a job's light tasks, which are in its ledger alone."""
    steps = [spec.name for spec in job.steps if spec.light]
    if not steps or not (workspace.folder / LEDGER_NAME).exists():
        return {}
    ledger = workspace.open_ledger()
    try:
        outputs = (output for step in steps for output in ledger.outputs(job.key, step))
        return {output.task_key: output for output in outputs if output is not None}
    finally:
        ledger.close()


def _known_plans(store: Store, job: Job, scratch: Path, light: Mapping[str, Output]) -> Plans:
    """The chunks of every plan that is done, following plans that hang on plans."""
    plans: dict[str, list[str]] = {}
    seen: set[str] = set()
    while True:
        named = {task.step: task.key for task in expand(job, plans)}
        new = [spec for spec in plan_steps(job) if spec.name in named and spec.name not in seen]
        if not new:
            return plans
        for spec in new:
            seen.add(spec.name)
            output = light.get(named[spec.name])
            receipt = None if spec.light else peek(store, spec.name, named[spec.name])
            if receipt is not None:
                output = Output(receipt.task_key, receipt.result, receipt.files)
            if output is not None:
                with suppress(CorruptArtifact):  # then the plan has to run again
                    plans[spec.name] = chunks(output_text(store, output, scratch))


def _start_over(ledger: Ledger, store: Store, job: Job, workspace: Workspace) -> None:
    """Put everything finished of a job into quarantine and forget the job."""
    worker = worker_name()
    with alive(workspace, worker):
        ledger.rescue(dead(workspace))
        ledger.submit(job, expand(job, {}))
        scratch = workspace.folder / "scratch"
        adopt_all(ledger, store, job, scratch, worker)  # so that the plans' tasks are known
    keys = {receipt_key(row.step, row.key) for row in ledger.tasks(job.key)}
    for spec in job.steps:  # a fan-in that ran over gaps has its receipt under another key
        outputs = ledger.outputs(job.key, spec.name)
        keys |= {receipt_key(spec.name, output.task_key) for output in outputs if output}
    if not ledger.forget(job.key):
        raise UsageError(
            "another process is working on this job.",
            remedy="Wait for it, or cancel it, before starting afresh.",
        )
    quarantine(store, sorted(keys))
