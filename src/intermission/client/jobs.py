"""`submit` and `Client`: jobs that workers do, in a shared ledger or behind a server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from intermission.client.given import Place, Sources, app_with, places_of
from intermission.composition.fleet import Fleet
from intermission.errors import UsageError
from intermission.model import JobState, TaskState
from intermission.operations import JobHandle, list_jobs, open_job
from intermission.operations.documents import (
    EventDocument,
    JobDocument,
    LogDocument,
    OutputDocument,
    Retried,
    SubmittedDocument,
    TaskDetails,
    TaskDocument,
    WhyDocument,
)
from intermission.operations.submit import submit_each

S = TypeVar("S", bound=StrEnum)

ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


def submit(
    pipeline: str,
    sources: Sources,
    *,
    server: str | None = None,
    secret: str | None = None,
    ledger: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **how: Any,
) -> SubmittedDocument:
    """Put jobs into a shared ledger or onto a server; see `Client.submit` for the rest."""
    client = Client(server, secret=secret, ledger=ledger, settings=settings)
    return client.submit(pipeline, sources, **how)


class Client:
    """Jobs of a server, of a shared ledger, or of runs at and below a folder.

    Unless you give one, the settings say which server or ledger it is, as for commands. A job is
    named by its source, which means its newest job, or by the beginning of its key. Every thread
    may use it.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        secret: str | None = None,
        ledger: str | None = None,
        place: Place = ".",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`place` is where the jobs of runs are looked for, without a server or a ledger."""
        if server is not None and ledger is not None:
            raise UsageError(
                "a client asks a server or a ledger, not both.", remedy="Give one of them."
            )
        given = {"server": server, "ledger": ledger, "admin_secret": secret}
        self._app = app_with(settings, **{k: v for k, v in given.items() if v is not None})
        self._place = os.fspath(place)

    def submit(
        self,
        pipeline: str,
        sources: Sources,
        *,
        include: Sequence[str] = (),
        priority: int = 0,
        not_before: datetime | None = None,
        params: Mapping[str, Any] | None = None,
        **more_params: Any,
    ) -> SubmittedDocument:
        """Put the jobs of sources there for workers; a job that is there is not put there twice.

        Parameters of the pipeline are keyword arguments; `params` takes those whose names this
        method uses itself. A source that cannot be submitted has its error in the document; if
        none can, the first error is raised.
        """
        fleet = Fleet(self._app.settings)
        loaded = fleet.app.catalog.add(pipeline)
        values = {**(params or {}), **more_params}
        loaded.bind(values)
        places = fleet.app.sources(places_of(sources), include, loaded).sources
        begin_ms = 0 if not_before is None else int(not_before.timestamp() * 1000)
        how = {"priority": priority, "not_before_ms": begin_ms}
        sent = list(submit_each(fleet, loaded, places, values, **how))
        errors = [one.error for one in sent if one.error is not None]
        if errors and len(errors) == len(sent):
            raise errors[0]
        return SubmittedDocument(jobs=[one.document() for one in sent])

    def jobs(self, *, states: Iterable[str] = (), pipeline: str | None = None) -> list[JobDocument]:
        """Every job, newest first; only in these states and of this pipeline, where given."""

        def fail(_: object, e: Exception) -> None:
            raise e

        wanted = [_state(JobState, name) for name in states]
        return list(list_jobs(self._app, self._place, fail, states=wanted, pipeline=pipeline))

    def job(self, name: Place) -> JobDocument:
        """A job as it is now."""
        with self._open(name) as found:
            return found.document()

    def tasks(self, name: Place, *, states: Iterable[str] = ()) -> list[TaskDocument]:
        """The tasks of a job, in the order they were added."""
        wanted = [_state(TaskState, state) for state in states]
        with self._open(name) as found:
            return list(found.tasks(wanted))

    def task(self, name: Place, task: str) -> TaskDetails:
        """All that is known of a task, named as `count[7]` or by its key's beginning."""
        with self._open(name) as found:
            return found.details(task)

    def why(self, name: Place, task: str) -> WhyDocument:
        """Why a task ran, was reused, or has not run."""
        with self._open(name) as found:
            return found.why(task)

    def log(self, name: Place, task: str, attempt: int | None = None) -> LogDocument:
        """What an attempt of a task wrote; the newest unless given."""
        with self._open(name) as found:
            return found.log(task, attempt)

    def events(self, name: Place, *, after: int = 0) -> list[EventDocument]:
        """What happened to a job after the event with this number."""
        with self._open(name) as found:
            return list(found.events(after))

    def wait(
        self,
        name: Place,
        *,
        on_progress: Callable[[JobDocument], object] | None = None,
        timeout_s: float | None = None,
    ) -> JobDocument:
        """The job once it has ended: done, failed or cancelled. Raises `TimeoutError`.

        `on_progress` gets the job whenever it has changed, in the calling thread.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        told: JobDocument | None = None
        for job, look_every_s in self._looks(name):
            if on_progress is not None and job != told:
                told = job
                on_progress(job)
            if job.state in ENDED:
                return job
            if until_s is not None and time.monotonic() + look_every_s > until_s:
                raise TimeoutError(f"job {job.job[:10]} is {job.state} after {timeout_s:g} s")
            time.sleep(look_every_s)
        raise AssertionError("looking at a job never ends by itself")

    def _looks(self, name: Place) -> Iterator[tuple[JobDocument, float]]:
        """The job as it is now, again and again. A copy of a bucket's ledger is fetched anew."""
        while True:
            with self._open(name) as found:
                name = found.document().job if not found.is_copy else name
                yield found.document(), found.look_every_s
                while not found.is_copy:
                    yield found.document(), found.look_every_s

    def cancel(self, name: Place) -> JobDocument:
        """Cancel a job; what is done stays done. Raises `UsageError` when it has ended."""
        with self._open(name, write=True) as found:
            return found.cancel()

    def retry(self, name: Place, *, tasks: Sequence[str] = (), fresh: bool = False) -> Retried:
        """Put back what failed or was cancelled, or the named tasks, for workers to go on with.

        With `fresh`, named tasks that are done run again too. Without a server or a ledger,
        `run()` goes on with them.
        """
        if fresh and not tasks:
            raise UsageError(
                "with fresh=True, the tasks that run again have to be named.",
                remedy="Give tasks=[...]; run(..., fresh=True) starts a whole job over.",
            )
        with self._open(name, write=True) as found:
            put_back = found.retry(tasks, fresh=fresh)
            return Retried(put_back=put_back, job=found.document())

    def outputs(self, name: Place) -> list[OutputDocument]:
        """The files that a job has made so far."""
        with self._open(name) as found:
            return found.outputs()

    def download(self, name: Place, output: str, to: Place) -> Path:
        """Copy an output into a file, which is there only once it is whole."""
        path = Path(to)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with self._open(name) as found:
                found.download(output, part)
            return part.rename(path)
        finally:
            part.unlink(missing_ok=True)

    def _open(self, name: Place, *, write: bool = False) -> AbstractContextManager[JobHandle]:
        return open_job(self._app, os.fspath(name), self._place, write=write)


def _state(kind: type[S], name: str) -> S:
    try:
        return kind(name)
    except ValueError as e:
        known = ", ".join(kind)
        raise UsageError(f"there is no state {name!r}.", remedy=f"The states are {known}.") from e
