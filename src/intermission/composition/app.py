"""Where things live and which backend keeps them: local sources, each with its workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from intermission.backends.executor import slot
from intermission.backends.executor.reaper import Reaper
from intermission.backends.ledger.object_ledger import Ownership
from intermission.backends.ledger.sqlite.snapshot import copy_ledger
from intermission.backends.source_files import require_unchanged
from intermission.backends.work_source.worker_locks import alive, dead, living, worker_name
from intermission.composition.discovery import find_workspaces
from intermission.composition.ledgers import shared_ledger
from intermission.composition.locations import (
    LEDGER_NAME,
    FoundSources,
    Location,
    ObjectLocation,
    find_locations,
    find_object_workspaces,
    identify_location,
    location_of,
    open_ledger,
    workspace_of,
)
from intermission.engine.planning import expand, make_job
from intermission.engine.receipt import receipt_key
from intermission.engine.workspace import Workspace
from intermission.errors import (
    NotFound,
    SourceError,
    StoreError,
    StoreUnavailable,
    UsageError,
    WorkspaceBusy,
)
from intermission.maintenance.gc import Swept, attempts_under_way, collect
from intermission.maintenance.rebuild import (
    Rebuilt,
    adopt_all,
    needs_shared_ledger,
    rebuild,
    remember_job,
    remembered_job,
)
from intermission.maintenance.redo import withdraw_all
from intermission.maintenance.superseded_outputs import bring_back, given_up_ms
from intermission.maintenance.verify import verify
from intermission.model import Job, JobState, Source, TaskState
from intermission.pipeline import Pipeline
from intermission.pipeline.catalog import Catalog
from intermission.pipeline.context import is_output_name
from intermission.ports.clock import Clock, SystemClock
from intermission.ports.ledger import Ledger, every_output, every_task
from intermission.ports.store import Store
from intermission.settings import Settings
from intermission.telemetry import reached

if TYPE_CHECKING:
    from intermission.backends.http.api_client import ApiClient


@dataclass(frozen=True)
class Submission:
    """A job in its ledger, ready for a worker."""

    workspace: Workspace
    job: Job
    ledger: Ledger
    store: Store
    is_new: bool
    reused: int
    """Tasks that were done when it was submitted."""
    owned: Ownership | None
    """Of a workspace in a bucket."""
    held: ExitStack
    """Closes the ledger, and gives the workspace up."""


def start_reaper(*, own_interpreter: bool = False) -> Reaper:
    """The parent of the slots: to be forked before anything opens a ledger or starts a thread.

    In an interpreter of its own it may be started at any time.
    """
    return Reaper(slot.main, own_interpreter=own_interpreter)


class App:
    """The parts, put together by these settings."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.shared = shared_ledger(settings)
        """How to open the one ledger for all jobs, if there is one."""
        self.catalog = Catalog(settings.pipelines)
        """The pipelines this process may run."""

    @cached_property
    def server(self) -> ApiClient | None:
        """The server whose jobs commands are about, if one is named; else a ledger has them."""
        if self.settings.server is None:
            return None
        from intermission.composition.server_client import api_client

        return api_client(self.settings)

    def workspace(self, source: Location, output: str | None = None) -> Workspace:
        """A source's workspace; `output` names the folder for its outputs."""
        own = workspace_of(source, self.settings, output)
        if self.shared is None:
            return own
        return replace(own, open_ledger=self.shared, is_remote=False)

    def workspace_of_job(self, job: Job, output: str | None = None) -> Workspace:
        """A job's workspace, wherever its source is."""
        return self.workspace(location_of(job.source), output)

    def params_of(
        self, pipeline: Pipeline, source: Location, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The parameters for a source: what `overrides` say of it counts more than these."""
        merged = dict(params)
        for one in self.settings.overrides:
            if one.is_for(pipeline.name, str(source)):
                merged |= one.params
        return merged

    def sources(
        self, places: Sequence[str], include: Sequence[str], pipeline: Pipeline
    ) -> FoundSources:
        """What a pipeline is to run over: of folders, the files that it takes."""
        return find_locations(places, include, self.settings, pipeline.output, pipeline.accepts)

    @contextmanager
    def owning(
        self, workspace: Workspace, on_lost: Callable[[Exception], None] = lambda _: None
    ) -> Iterator[Ownership | None]:
        """Be the only writer of a workspace, where that has to be agreed on."""
        if not workspace.is_remote:
            yield None
            return
        with Ownership(
            workspace,
            worker_name(),
            on_lost=on_lost,
            clock=self.clock,
            ttl_s=self.settings.lease_ttl_s,
            renew_every_s=self.settings.renew_every_s,
        ) as owned:
            yield owned

    @contextmanager
    def reading(self, workspace: Workspace) -> Iterator[Ledger | None]:
        """A workspace's ledger for those who only look; None where there is none.

        Of one in a bucket: a copy that is thrown away, as it is now if its owner is on this
        machine, else as its owner uploaded it last.
        """
        with ExitStack() as held:
            if workspace.is_remote:
                folder = held.enter_context(TemporaryDirectory(prefix="intermission-"))
                copy, own = Path(folder, LEDGER_NAME), workspace.folder / LEDGER_NAME
                if living(workspace) and own.exists():
                    copy_ledger(own, copy)
                elif (stored := self._stored_ledger(workspace)) is not None:
                    copy.write_bytes(stored)
                else:
                    yield None
                    return
                ledger = open_ledger(copy)
            elif self.shared is not None or (workspace.folder / LEDGER_NAME).exists():
                ledger = workspace.open_ledger()
            else:
                yield None
                return
            held.callback(ledger.close)
            yield ledger

    def _stored_ledger(self, workspace: Workspace) -> bytes | None:
        try:
            return workspace.open_store().read(LEDGER_NAME)
        except NotFound:
            return None

    @contextmanager
    def writing(self, workspace: Workspace) -> Iterator[Ledger]:
        """A workspace's ledger for those who change it by hand."""
        with self.owning(workspace):
            ledger = workspace.open_ledger()
            try:
                yield ledger
            finally:
                ledger.close()

    def submit(
        self,
        pipeline: Pipeline,
        path: Location,
        params: Mapping[str, Any],
        *,
        fresh: bool = False,
        thorough: bool = False,
        expected: str | None = None,
        priority: int = 0,
        not_before_ms: int = 0,
        known: Source | None = None,
        lent: Ledger | None = None,
        on_lost: Callable[[Exception], None] = lambda _: None,
    ) -> Submission:
        """Put the job for a source into its ledger, or find it there, and look at its receipts.

        A job that had ended in failure starts again: the same command always continues. With
        `expected`, only if it is the job with that key. With `known`, the source is that one, and
        is not read again. A `lent` ledger is used instead of a
        new instance, and stays open. `on_lost` is called, by another thread, when somebody else
        has become the owner of a workspace in a bucket.
        """
        if not _is_text(path.name):
            raise SourceError(
                f"the name {path.name!r} is not UTF-8, so it cannot name outputs.",
                remedy="Rename the file.",
            )
        workspace = self.workspace(path, pipeline.output)
        if workspace.open_outputs is not None and pipeline.makes_files:
            workspace.open_outputs()  # sources get their names in the order they are submitted in
        store = workspace.open_store()
        store.self_test()
        source = known or identify_location(path, store, self.settings)
        if known is not None and isinstance(path, Path):
            require_unchanged(path, known.version)
        if expected is None:
            params = self.params_of(pipeline, path, params)
        job = make_job(pipeline, source, params)
        job = replace(job, priority=priority, not_before_ms=not_before_ms)
        if expected not in (None, job.key):
            raise UsageError(
                f"{pipeline.name} over {path} is no longer job {expected[:10]}.",
                remedy="The source or the pipeline changed since: `intermission run` it anew.",
            )
        with ExitStack() as held:
            owned = held.enter_context(self.owning(workspace, on_lost))
            ledger = lent or held.enter_context(closing(workspace.open_ledger()))
            scratch = workspace.scratch
            if fresh:
                _start_over(ledger, store, job, workspace)
            remember_job(store, job, in_shared_ledger=self.shared is not None)
            is_new = ledger.submit(job, expand(job, {}))
            if not is_new:
                opened = None if workspace.open_outputs is None else workspace.open_outputs()
                look = partial(verify, ledger, store, job, scratch, self.clock)
                look(outputs=opened, thorough=thorough)
                if expected is None:  # `retry` has said what to try again
                    _retry_stopped(ledger, job)
            bring_back(ledger, store, job)
            reached("after-submit")
            reused = 0 if is_new else ledger.jobs(job.key)[0].total(TaskState.DONE)
            return Submission(workspace, job, ledger, store, is_new, reused, owned, held.pop_all())
        raise AssertionError("nothing here swallows an error")

    def workspaces(self, place: Location) -> Iterator[tuple[Location, Workspace]]:
        """(source, workspace) of every workspace at or below a place."""
        if isinstance(place, ObjectLocation):
            for found in find_object_workspaces(place, self.settings):
                yield found, self.workspace(found)
            return
        for folder in find_workspaces(place, self.settings.workspace_name):
            source = folder.parent.parent / folder.name
            yield source, self.workspace(source)

    def rebuild(self, source: Location) -> dict[str, Rebuilt]:
        """A new ledger from the receipts of a source's workspace; the old one is kept aside."""
        workspace = self.workspace(source)
        if workspace.is_remote:
            with self.writing(workspace) as ledger:
                ledger.rescue(ledger.workers())
                for row in ledger.jobs():
                    ledger.delete(row.job.key)
                return _rebuild(ledger, workspace)
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
        with self.writing(workspace) as ledger:
            return _rebuild(ledger, workspace)

    def gc(self, source: Location, workspace: Workspace, *, grace_s: float, dry_run: bool) -> Swept:
        if grace_s < self.settings.lease_ttl_s:
            raise UsageError(
                f"a grace of {grace_s:g} s is shorter than a lease, "
                f"{self.settings.lease_ttl_s:g} s.",
                remedy="A task may still be committing its files: give it longer.",
            )
        if living(workspace):
            return Swept(0, 0, 0, in_use=True)
        try:
            with self.owning(workspace), self.reading(workspace) as ledger:
                store = workspace.open_store()
                if self.shared is None and needs_shared_ledger(store):
                    return Swept(0, 0, 0, needs_ledger=True)
                return collect(
                    store,
                    self.clock,
                    grace_s=grace_s,
                    dry_run=dry_run,
                    outputs_of=lambda key: self._outputs_of(source, store, key),
                    given_up_ms=partial(given_up_ms, ledger),
                    under_way=lambda: attempts_under_way(ledger, store),
                )
        except WorkspaceBusy:
            return Swept(0, 0, 0, in_use=True)

    def _outputs_of(self, source: Location, store: Store, job_key: str) -> Store | None:
        """Where a remembered job of this source publishes; None where its record does not say.

        Others may have written the record: it names a folder among the source's outputs, and
        neither code nor another source.
        """
        try:
            output = remembered_job(store, f"jobs/{job_key}.json").output
        except StoreUnavailable:
            raise
        except (NotFound, StoreError):
            return None
        if not is_output_name(output) or "/" in output:
            return None
        workspace = self.workspace(source, output)
        return None if workspace.open_outputs is None else workspace.open_outputs()


def _rebuild(ledger: Ledger, workspace: Workspace) -> dict[str, Rebuilt]:
    with alive(workspace, worker_name()):  # so that no other rebuild is at work here
        return rebuild(ledger, workspace.open_store(), workspace.scratch)


def _retry_stopped(ledger: Ledger, job: Job) -> None:
    """The same command continues: what failed in an earlier run gets a fresh set of attempts.

    A gap is left as it is; the job goes on, or went on, without it.
    """
    (row,) = ledger.jobs(job.key)
    if row.state in (JobState.FAILED, JobState.CANCELLED):
        ledger.retry(job.key)
    elif row.total(TaskState.FAILED):
        failed = every_task(ledger, job.key, states=[TaskState.FAILED])
        ids = [task.id for task in failed if not job.step(task.step).skippable]
        if ids:
            ledger.retry(job.key, ids)


def _is_text(name: str) -> bool:
    """Whether a file's name is UTF-8; bytes that are not come as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _start_over(ledger: Ledger, store: Store, job: Job, workspace: Workspace) -> None:
    """Put everything finished of a job into quarantine and forget the job."""
    with alive(workspace, worker_name()):
        ledger.rescue(dead(workspace))
        ledger.submit(job, expand(job, {}))
        scratch = workspace.scratch
        adopt_all(ledger, store, job, scratch)  # so that the plans' tasks are known
    keys = {receipt_key(row.step, row.key) for row in every_task(ledger, job.key)}
    for spec in job.steps:  # a fan-in that ran over gaps has its receipt under another key
        outputs = every_output(ledger, job.key, spec.name)
        keys |= {receipt_key(spec.name, one.output.task_key) for one in outputs if one.output}
    if not ledger.delete(job.key):
        raise UsageError(
            "another process is working on this job.",
            remedy="Wait for it, or cancel it, before starting afresh.",
        )
    withdraw_all(store, sorted(keys))
