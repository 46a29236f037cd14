"""One job as commands and the API handle it: what is known of it, and what can be done to it.

`LedgerJob` is a job in a ledger that this process has open; `server_api.ServerJob` is one behind
a server. Both answer with the documents that `--json` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from intermission.composition.app import App
from intermission.composition.event_log import events_after, last_event
from intermission.composition.locations import Location
from intermission.errors import EnvironmentFault, LedgerError, UsageError, os_faults
from intermission.maintenance.redo import redo
from intermission.model import JobState, TaskState
from intermission.operations import inspect
from intermission.operations.documents import (
    EventDocument,
    GroupDocument,
    JobDocument,
    LogDocument,
    OutputDocument,
    TaskDetails,
    TaskDocument,
    WaitDocument,
    WhyDocument,
)
from intermission.operations.job_lookup import Found, all_jobs, each_job, find_job, find_task
from intermission.operations.published_outputs import OutputFile, documents_of, outputs_of
from intermission.operations.rendition_progress import groups_of
from intermission.operations.waiting import waits_of
from intermission.ports.ledger import every_task

LOOK_EVERY_S = 0.3
COPY_EVERY_S = 2.0
REFUSED_MAX = 100
"""So many tasks that hosts have refused are shown."""


class JobHandle(Protocol):
    """A job. Tasks are named as people name them: a step, `count[7]`, the beginning of a key."""

    look_every_s: float
    """How often it pays to look for news."""
    is_copy: bool
    """Whether it is seen as it was when it was opened, and has to be opened again for news."""

    def document(self) -> JobDocument:
        """The job as it is now. Raises `UsageError` when it is gone."""
        ...

    def tasks(self, states: Collection[TaskState] = ()) -> Iterator[TaskDocument]: ...
    def groups(self) -> list[GroupDocument]: ...
    def details(self, task: str) -> TaskDetails: ...
    def why(self, task: str) -> WhyDocument: ...
    def waiting(self) -> list[WaitDocument]: ...
    def log(self, task: str, attempt: int | None = None) -> LogDocument: ...
    def events(self, after: int) -> Iterator[EventDocument]: ...
    def last_event(self) -> int: ...
    def cancel(self) -> JobDocument:
        """Raises `UsageError` when it has ended."""
        ...

    def retry(self, tasks: Sequence[str], *, fresh: bool) -> int:
        """How many tasks were put back; all that failed or were cancelled, if none is named.

        With `fresh`, the named tasks go again even if they are done, without their receipts.
        """
        ...

    def outputs(self) -> list[OutputDocument]:
        """What it has made so far."""
        ...

    def download(self, name: str, to: Path) -> None:
        """Write the bytes of an output into a file. Raises `UsageError` where it has none such."""
        ...


@contextmanager
def open_job(app: App, name: str, place: str, *, write: bool = False) -> Iterator[JobHandle]:
    """The newest job of a source, or the one whose key begins with `name`, wherever it is kept."""
    if app.server is not None:
        from intermission.operations.server_api import ServerApi

        yield ServerApi(app.server).job(name)
        return
    with find_job(app, name, place, write=write) as found:
        yield LedgerJob(found)


def refused_tasks(job: JobHandle) -> list[TaskDocument]:
    """Tasks that wait because hosts could not run them."""
    if not job.document().total(TaskState.ABANDONED):
        return []
    waiting = job.tasks([TaskState.ABANDONED])
    return list(islice((task for task in waiting if task.refusals), REFUSED_MAX))


def list_jobs(
    app: App,
    place: str,
    on_fault: Callable[[Location, LedgerError], None],
    *,
    states: Collection[JobState] = (),
    pipeline: str | None = None,
) -> Iterator[JobDocument]:
    """Every job of a server, of a shared ledger, or at and below a place; see `all_jobs`."""
    if app.server is not None:
        from intermission.operations.server_api import ServerApi

        yield from ServerApi(app.server).jobs(states=states, pipeline=pipeline)
        return
    read = partial(each_job, states=states, pipeline=pipeline)
    for found in all_jobs(app, place, on_fault, read):
        yield JobDocument.of(found.row, found.source).brief()


class LedgerJob:
    """A job in a ledger that is open here."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._key = found.row.job.key
        self.is_copy = found.workspace.is_remote
        self.look_every_s = COPY_EVERY_S if self.is_copy else LOOK_EVERY_S

    def document(self) -> JobDocument:
        rows = self._found.ledger.jobs(self._key)
        if not rows:
            raise UsageError(
                "the job is gone.", remedy="Somebody started it afresh: look for it again."
            )
        return JobDocument.of(rows[0], self._found.source)

    def tasks(self, states: Collection[TaskState] = ()) -> Iterator[TaskDocument]:
        return map(TaskDocument.of, every_task(self._found.ledger, self._key, states=states))

    def groups(self) -> list[GroupDocument]:
        return groups_of(self._found.ledger, self._found.row.job)

    def details(self, task: str) -> TaskDetails:
        found, row = self._found, find_task(self._found, task)
        known, receipt = inspect.receipt_of(found, row), None
        if known is not None:
            path, stands = known
            receipt = {"path": None if path is None else str(path), **asdict(stands)}
        history, after = inspect.history_of(found, row)
        return TaskDetails(
            **TaskDocument.of(row).model_dump(),
            why=inspect.why(found, row, inspect.waits_of_task(found, row)),
            receipt=receipt,
            logs={str(attempt): str(path) for attempt, path in inspect.logs_of(found, row).items()},
            history=[EventDocument.of(event) for event in history],
            history_after=after,
        )

    def why(self, task: str) -> WhyDocument:
        row = find_task(self._found, task)
        waiting = inspect.waits_of_task(self._found, row)
        why = inspect.why(self._found, row, waiting)
        return WhyDocument(task=row.name, state=row.state, why=why, waiting=waiting)

    def waiting(self) -> list[WaitDocument]:
        return waits_of(self._found)

    def log(
        self, task: str, attempt: int | None = None, *, max_bytes: int | None = None
    ) -> LogDocument:
        """With `max_bytes`, no more than the end of it."""
        row = find_task(self._found, task)
        known = inspect.logs_of(self._found, row)
        if attempt is not None and attempt not in known:
            numbers = ", ".join(map(str, sorted(known))) or "none"
            raise UsageError(
                f"{row.name} has no log of attempt {attempt}.",
                remedy=f"Attempts with a log: {numbers}.",
            )
        wanted = attempt if attempt is not None else next(reversed(known), None)
        path = None if wanted is None else known[wanted]
        return LogDocument(
            task=row.name,
            state=row.state,
            message=row.message,
            attempt=wanted,
            path=None if path is None else str(path),
            text="" if path is None else _end_of(path, max_bytes),
            elsewhere=None if known else inspect.ran_elsewhere(self._found, row),
        )

    def events(self, after: int) -> Iterator[EventDocument]:
        return map(EventDocument.of, events_after(self._found.ledger, after, self._key))

    def last_event(self) -> int:
        return last_event(self._found.ledger)

    def cancel(self) -> JobDocument:
        self._found.ledger.cancel(self._key, reason="cancelled on request")
        document = self.document()
        if document.state is not JobState.CANCELLED:
            raise UsageError(
                f"job {self._key[:10]} is {document.state} and cannot be cancelled.",
                remedy="Only a job that has not ended can.",
            )
        return document

    def retry(self, tasks: Sequence[str], *, fresh: bool) -> int:
        found, job = self._found, self._found.row.job
        rows = [find_task(found, name) for name in tasks]
        done = [row for row in rows if row.state is TaskState.DONE]
        if done and not fresh:
            raise UsageError(
                f"{done[0].name} is done.", remedy="With --fresh it runs again all the same."
            )
        changed = 0
        if done:
            store = found.workspace.open_store()
            changed += redo(found.ledger, store, job, done, "retried by hand")
        ids = [row.id for row in rows if row.state is not TaskState.DONE]
        if ids or not rows:
            changed += found.ledger.retry(job.key, ids or None)
        return changed

    def outputs(self) -> list[OutputDocument]:
        return documents_of(outputs_of(self._found.ledger, self._found.row.job))

    def download(self, name: str, to: Path) -> None:
        found = outputs_of(self._found.ledger, self._found.row.job)
        if name not in found:
            raise no_such_output(name, found)
        _, file = found[name]
        opened = OutputFile(self._found.workspace.open_store(), file)
        with os_faults(f"writing {to}", EnvironmentFault, where=to), to.open("wb") as written:
            for block in opened.blocks(0, file.size_bytes):
                written.write(block)


def no_such_output(name: str, known: Iterable[str]) -> UsageError:
    return UsageError(
        f"the job has no output {name!r}.",
        remedy=f"It has made: {', '.join(known) or 'nothing so far'}.",
    )


def _end_of(path: Path, max_bytes: int | None) -> str:
    with path.open("rb") as log:
        if max_bytes is not None:
            log.seek(max(0, path.stat().st_size - max_bytes))
        return log.read().decode(errors="replace")
