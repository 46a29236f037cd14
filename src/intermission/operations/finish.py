"""Finishing a deferred task with what came from outside: a result, files, or word that it failed.

One finish counts, because the store keeps the first receipt. Whoever sends the same again, after
a crash or a lost answer, is told that the task is done; whoever sends something else, or comes
too late, is told what became of the task. After a kill at any point the same call goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from intermission.composition.app import App
from intermission.composition.fleet import Fleet, fleet_delays
from intermission.composition.locations import Location, as_location
from intermission.engine import completion
from intermission.engine.receipt import attempt_prefix, peek
from intermission.engine.workspace import Workspace
from intermission.errors import EnvironmentFault, UsageError, fault_from_os
from intermission.model import (
    Completion,
    FileRef,
    Job,
    Lease,
    Reason,
    TaskState,
    identity,
)
from intermission.operations.documents import FinishedDocument
from intermission.operations.held_tasks import HeldTask, OpenedJob
from intermission.operations.lease_tokens import LeaseToken
from intermission.operations.remote_results import Refused
from intermission.operations.task_ends import (
    SentFile,
    check_artifact_name,
    finished,
    keep_artifact,
    kept_files,
    result_of,
    sha256_of,
)
from intermission.pipeline import Pipeline
from intermission.ports.ledger import DeferredTask, Ledger, output_of
from intermission.ports.slot_protocol import Failed
from intermission.telemetry import reached

WHO = "finish"
"""What a receipt says instead of a worker's name."""
FAILED_OUTSIDE = "FailedOutside"
Delays = tuple[Sequence[float], float]
"""Between attempts, and the share by which each is longer or shorter."""


@dataclass(frozen=True)
class Outcome:
    """What came from outside; with `failed`, that the attempt failed, and why."""

    result: str = ""
    """JSON; empty when it is the file `result.json`, or when the attempt failed."""
    failed: str | None = None


class NotWaiting(UsageError):
    """No task waits for this token: it never did, or it has ended."""

    def __init__(self, message: str, *, remedy: str = "", is_known: bool = False) -> None:
        super().__init__(message, remedy=remedy)
        self.is_known = is_known


def finish(
    app: App, token: str, outcome: Outcome, files: Mapping[str, Path], place: str
) -> FinishedDocument:
    """Finish the task that waits for a token, wherever these settings say it is."""
    readable = list(_readable(files))
    if app.server is not None:
        from intermission.operations.server_api import ServerApi

        return ServerApi(app.server).finish(token, outcome.result, outcome.failed, files)
    with _found(app, token, place) as (ledger, found, opened):
        delays = app.settings.retry_delays_s, 0.0
        if app.shared is not None:
            delays = fleet_delays(app.settings)
        end = _End(ledger, token, found, opened, app.clock.now_ms(), delays)
        try:
            sent = [end.add(name, path, sha256_of(path)) for name, path in readable]
        except OSError as e:
            raise fault_from_os(e, "reading a file", EnvironmentFault) from e
        return end.write(outcome, sent)


class DeferredTasks:
    """The deferred tasks of a fleet, for a server. For any thread."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def spool(self, token: str, name: str) -> Path:
        """Where to keep a file's bytes until they are all there. Raises for a bad name."""
        held = self._end(token).held
        check_artifact_name(held, name)
        return held.opened.scratch / "uploads"

    def add_file(self, token: str, name: str, body: bytes | Path, sha256: str) -> FileRef:
        """Keep a file for the task that waits for a token."""
        return self._end(token).add(name, body, sha256)

    def finish(self, token: str, outcome: Outcome, files: Sequence[SentFile]) -> FinishedDocument:
        """Finish the task that waits for a token; its files were added before."""
        document = self._end(token).write(outcome, files)
        self._fleet.notify()
        return document

    def _end(self, token: str) -> _End:
        fleet, ledger = self._fleet, self._fleet.ledger
        found = _known(ledger, token)
        job = _job(ledger, found)
        opened = _opened(job, fleet.pipeline(job), fleet.workspace(job))
        now_ms, delays = fleet.app.clock.now_ms(), fleet_delays(fleet.settings)
        return _End(ledger, token, found, opened, now_ms, delays)


class _End:
    """The end of one deferred task."""

    def __init__(
        self,
        ledger: Ledger,
        token: str,
        found: DeferredTask,
        opened: OpenedJob,
        now_ms: int,
        delays: Delays,
    ) -> None:
        self._ledger, self._token, self._found = ledger, token, found
        self._now_ms, self._delays = now_ms, delays
        self.held = _held(ledger, found, opened, token)

    def add(self, name: str, body: bytes | Path, sha256: str) -> FileRef:
        check_artifact_name(self.held, name)
        if self._found.is_waiting:
            key = self._key(name, sha256)
            kept = keep_artifact(self.held.opened.store, key, name, body, sha256)
            reached("after-artifacts")
            return kept
        receipt = peek(self.held.opened.store, self.held.spec.name, self.held.receipt_key)
        for one in () if receipt is None else receipt.files:
            if (one.name, one.sha256) == (name, sha256):  # the same again
                return one
        raise _ended(self._found)

    def _key(self, name: str, sha256: str) -> str:
        """Other bytes are another object: no sender is in another's way."""
        held = self.held
        attempt = f"{held.lease.fence:05d}-{identity(self._token, name, sha256)[:12]}"
        return f"{attempt_prefix(held.spec.name, held.receipt_key, attempt)}/{name}"

    def write(self, outcome: Outcome, named: Sequence[SentFile]) -> FinishedDocument:
        if outcome.failed is not None:
            return self._fail(outcome.failed)
        try:
            files = kept_files(self.held, named, lambda one: self._key(one.name, one.sha256))
            result = result_of(self.held, outcome.result, files)
            if self._found.is_waiting:
                self._record(finished(self.held, outcome.result, files, self._now_ms))
        except Refused as e:
            raise UsageError(e.message, remedy=e.remedy) from e
        if not self._stands(result, files):
            raise _ended(_known(self._ledger, self._token))
        return self._document(TaskState.DONE)

    def _record(self, end: Completion) -> None:
        opened = self.held.opened
        done = [(self.held.lease, end)]
        completion.complete(self._ledger, opened.store, opened.job, done, opened.scratch)

    def _stands(self, result: str, files: Sequence[FileRef]) -> bool:
        """Whether the task is done with this very result and these files."""
        held = self.held
        if _known(self._ledger, self._token).row.state is not TaskState.DONE:
            return False
        if not held.spec.durable:
            place = held.lease.job_key, held.spec.name, held.lease.index
            standing = output_of(self._ledger, *place)
            return standing is not None and standing.result == result
        receipt = peek(held.opened.store, held.spec.name, held.receipt_key)
        return receipt is not None and (receipt.result, _sums(receipt.files)) == (
            result,
            _sums(files),
        )

    def _fail(self, message: str) -> FinishedDocument:
        lease, row = self.held.lease, self._found.row
        if not self._found.is_waiting:
            if (row.error, row.message) == (FAILED_OUTSIDE, message):  # the same again
                return self._document(row.state)
            raise _ended(self._found)
        failed = Failed(lease.task_id, FAILED_OUTSIDE, message, False)
        how = completion.failure(self.held.opened.job, lease, failed, *self._delays)
        (state,) = self._ledger.fail([how])
        if state is None:
            raise _ended(_known(self._ledger, self._token))
        return self._document(state)

    def _document(self, state: TaskState) -> FinishedDocument:
        return FinishedDocument(job=self._found.job_key, task=self._found.row.name, state=state)


def _held(ledger: Ledger, found: DeferredTask, opened: OpenedJob, token: str) -> HeldTask:
    """The task as a lease, under an attempt that every call with this token shares."""
    row, fence = found.row, found.fence
    lease = Lease(
        row.id,
        fence,
        row.attempts + 1,
        found.job_key,
        row.step,
        row.index,
        row.key,
        row.chunk,
    )
    attempt = f"{fence:05d}-{identity('deferral', token)[:12]}"
    given = LeaseToken(
        row.id, fence, attempt, lease.attempt, found.job_key, row.step, row.index, row.key, WHO
    )
    return HeldTask(lease, given, opened, 0.0, lambda: ledger)


def _sums(files: Sequence[FileRef]) -> list[tuple[str, str]]:
    return sorted((one.name, one.sha256) for one in files)


def _known(ledger: Ledger, token: str) -> DeferredTask:
    found = ledger.deferred(token)
    if found is None:
        raise _unknown(token, "the ledger")
    return found


def _unknown(token: str, where: str) -> NotWaiting:
    return NotWaiting(
        f"no task of {where} waits for {token[:200]!r}.",
        remedy="Give the token that the step passed to ctx.defer; --in, --ledger or --server say "
        "where to look.",
    )


def _ended(found: DeferredTask) -> NotWaiting:
    """What became of a task that no longer waits."""
    row = found.row
    what = f"{row.name} of job {found.job_key[:10]} no longer waits"
    remedy = "`intermission inspect` shows the task."
    if row.state is TaskState.DONE:
        message = f"{what}: it is done, with the result that came first."
        remedy = "The first result stands; `intermission retry --fresh` lets the task run again."
    elif row.state is TaskState.CANCELLED:
        message = f"{what}: it was cancelled."
    elif row.fence == found.fence and row.code == Reason.DEFERRAL_TIMED_OUT:
        message = f"{what}: the deferral timed out."
        remedy = "Let the step defer with a longer timeout_s; the task runs again by itself."
    else:
        message = f"{what}: that attempt ended, and the task is {row.state} now."
    return NotWaiting(message, remedy=remedy, is_known=True)


@contextmanager
def _found(app: App, token: str, place: str) -> Iterator[tuple[Ledger, DeferredTask, OpenedJob]]:
    """The task that was deferred under a token, its ledger open for writing."""
    if app.shared is not None:
        with closing(app.shared()) as ledger:
            found = _known(ledger, token)
            yield ledger, found, _opened_here(app, ledger, found, None)
        return
    known: tuple[Location, Workspace] | None = None
    for source, workspace in app.workspaces(as_location(place)):
        with app.reading(workspace) as ledger:
            found = None if ledger is None else ledger.deferred(token)
        if found is not None:
            known = source, workspace
            if found.is_waiting:
                break
    if known is None:
        raise _unknown(token, str(as_location(place)))
    source, workspace = known
    with app.writing(workspace) as ledger:
        found = _known(ledger, token)
        yield ledger, found, _opened_here(app, ledger, found, source)


def _opened_here(
    app: App, ledger: Ledger, found: DeferredTask, source: Location | None
) -> OpenedJob:
    """Its workspace is that of the source it was found at: a source may have been moved."""
    job = _job(ledger, found)
    if source is None:
        workspace = app.workspace_of_job(job, job.output)
    else:
        workspace = app.workspace(source, job.output)
    return _opened(job, app.catalog.of(job).pipeline, workspace)


def _job(ledger: Ledger, found: DeferredTask) -> Job:
    return ledger.jobs(found.job_key, limit=1)[0].job


def _opened(job: Job, pipeline: Pipeline | None, workspace: Workspace) -> OpenedJob:
    outputs = None if workspace.open_outputs is None else workspace.open_outputs()
    return OpenedJob(job, pipeline, workspace, workspace.open_store(), outputs)


def _readable(files: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Files by the name they are to have. Raises `UsageError` for one that can't be read."""
    for name, path in files.items():
        if not path.is_file():
            raise UsageError(
                f"expected a file at {path} for {name}, found none.",
                remedy="Write --file NAME=PATH, with the path of a file.",
            )
        yield name, path
