"""The JSON API of a server as commands use it: each call, and the documents it answers with."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from intermission.backends.http.api_client import ApiClient, segment
from intermission.backends.http.client import measured
from intermission.composition.locations import as_location
from intermission.errors import LedgerError, NotFound, StoreError, UsageError
from intermission.model import JobState, TaskState
from intermission.operations.documents import (
    EventDocument,
    EventPage,
    FailureDocument,
    FailureList,
    FinishedDocument,
    GroupDocument,
    GroupList,
    JobDocument,
    JobPage,
    LastEvent,
    LimitDocument,
    LimitList,
    LogDocument,
    OutputDocument,
    OutputList,
    PrunedPage,
    PutBack,
    Retried,
    TaskDetails,
    TaskDocument,
    TaskPage,
    WaitDocument,
    WaitList,
    WhyDocument,
)
from intermission.operations.job_handle import LOOK_EVERY_S, no_such_output
from intermission.operations.job_lookup import no_such_job

D = TypeVar("D", bound=BaseModel)
P = TypeVar("P", JobPage, TaskPage)

PAGE = 1000
_KEY = re.compile(r"[0-9a-f]{1,40}")


class ServerApi:
    """A server, and all its jobs."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def read(
        self, shape: type[D], doing: str, verb: str, path: str, body: Any = None, **query: Any
    ) -> D:
        """The document that a call is answered with."""
        answer = self._client.ask(doing, verb, path, body, query=query)
        try:
            return shape.model_validate(answer)
        except ValidationError as e:
            raise LedgerError(
                f"{doing} failed: {self._client.url} answered with something else.",
                remedy="Is that the URL of an Intermission server of this version?",
            ) from e

    def pages(self, shape: type[P], doing: str, path: str, **query: Any) -> Iterator[P]:
        """The pages of a long list, one after the other."""
        cursor: str | None = None
        while True:
            page = self.read(shape, doing, "GET", path, cursor=cursor, limit=PAGE, **query)
            yield page
            cursor = page.next
            if cursor is None:
                return

    def fetch_file(self, doing: str, path: str, to: Path) -> None:
        """Write what a call is answered with into a file."""
        self._client.fetch_file(doing, path, to)

    def job(self, name: str) -> ServerJob:
        """The newest job of a source, or the one whose key begins with `name`."""
        source = str(as_location(name))
        found = self._job_page(source=source, limit=1).jobs
        if not found and _KEY.fullmatch(name):
            found = self._job_page(key=name, limit=2).jobs
        if len(found) != 1:
            raise no_such_job(name, len(found))
        return ServerJob(self, found[0])

    def jobs(
        self, *, states: Collection[JobState] = (), pipeline: str | None = None
    ) -> Iterator[JobDocument]:
        """Every job, newest first."""
        how = {"state": list(states), "pipeline": pipeline}
        for page in self.pages(JobPage, "listing jobs", "/jobs", **how):
            yield from page.jobs

    def _job_page(self, **query: Any) -> JobPage:
        return self.read(JobPage, "listing jobs", "GET", "/jobs", **query)

    def failures(
        self, *, pipeline: str | None, step: str | None, error: str | None
    ) -> list[FailureDocument]:
        which = {"pipeline": pipeline, "step": step, "error": error}
        return self.read(FailureList, "listing failures", "GET", "/failures", **which).failures

    def retry_failures(self, *, pipeline: str | None, step: str | None, error: str | None) -> int:
        which = {"pipeline": pipeline, "step": step, "error": error}
        path = "/failures/retry"
        return self.read(PutBack, "retrying what failed", "POST", path, which).put_back

    def limits(self) -> list[LimitDocument]:
        return self.read(LimitList, "listing limits", "GET", "/limits").limits

    def set_limit(self, name: str, running: int | None, per_minute: float | None) -> None:
        path = f"/limits/{segment(name)}"
        if running is None and per_minute is None:
            self._client.ask("removing a limit", "DELETE", path, query={"keep_pause": "true"})
            return
        body = {"running": running, "per_minute": per_minute}
        self.read(LimitDocument, "setting a limit", "PUT", path, body)

    def set_paused(self, name: str, paused: bool) -> None:
        what = "pause" if paused else "resume"
        self.read(LimitDocument, f"to {what}", "POST", f"/limits/{segment(name)}/{what}")

    def prune(
        self,
        older_than_s: float,
        *,
        states: Collection[JobState],
        pipeline: str | None,
        dry_run: bool,
        cursor: str | None,
    ) -> PrunedPage:
        body = {
            "older_than_s": older_than_s,
            "states": [str(state) for state in states],
            "pipeline": pipeline,
            "dry_run": dry_run,
            "cursor": cursor,
        }
        return self.read(PrunedPage, "pruning", "POST", "/prune", body)

    def finish(
        self, token: str, result: str, failed: str | None, files: Mapping[str, Path]
    ) -> FinishedDocument:
        """Send the outcome of a deferred task, its files first."""
        sent = [
            self._client.send_file(
                f"sending {name}", "/uploads/deferred", path, query={"token": token, "name": name}
            )
            for name, path in files.items()
        ]
        body: dict[str, Any] = {"files": sent}
        if failed is not None:
            body = {"failed": failed}
        elif result:
            try:
                body["result"] = json.loads(result)
            except ValueError as e:
                raise UsageError(
                    f"expected a result as JSON, found {result[:200]!r}.",
                    remedy="Quote a text as JSON does.",
                ) from e
        path = f"/deferred/{segment(token)}"
        return self.read(FinishedDocument, "finishing the task", "POST", path, body)


class ServerJob:
    """A job behind a server."""

    look_every_s = LOOK_EVERY_S
    is_copy = False

    def __init__(self, api: ServerApi, document: JobDocument) -> None:
        self._api = api
        self._path = f"/jobs/{document.job}"

    def document(self) -> JobDocument:
        try:
            return self._api.read(JobDocument, "looking at the job", "GET", self._path)
        except NotFound as e:
            raise UsageError(e.message, remedy=e.remedy) from e

    def tasks(self, states: Collection[TaskState] = ()) -> Iterator[TaskDocument]:
        path = f"{self._path}/tasks"
        for page in self._api.pages(TaskPage, "listing tasks", path, state=list(states)):
            yield from page.tasks

    def groups(self) -> list[GroupDocument]:
        path = f"{self._path}/groups"
        return self._api.read(GroupList, "listing groups", "GET", path).groups

    def details(self, task: str) -> TaskDetails:
        path = f"{self._path}/task"
        return self._api.read(TaskDetails, "looking at the task", "GET", path, name=task)

    def why(self, task: str) -> WhyDocument:
        path = f"{self._path}/task/why"
        return self._api.read(WhyDocument, "asking why", "GET", path, name=task)

    def waiting(self) -> list[WaitDocument]:
        path = f"{self._path}/waiting"
        return self._api.read(WaitList, "asking what waits", "GET", path).waiting

    def log(self, task: str, attempt: int | None = None) -> LogDocument:
        path, asked = f"{self._path}/task/log", {"name": task, "attempt": attempt}
        return self._api.read(LogDocument, "reading the log", "GET", path, **asked)

    def events(self, after: int) -> Iterator[EventDocument]:
        path = f"{self._path}/events"
        while True:
            how = {"after": after, "limit": PAGE}
            page = self._api.read(EventPage, "reading events", "GET", path, **how)
            yield from page.events
            if not page.more:
                return
            after = page.next

    def last_event(self) -> int:
        return self._api.read(LastEvent, "reading events", "GET", "/events/last").seq

    def cancel(self) -> JobDocument:
        return self._api.read(JobDocument, "cancelling", "POST", f"{self._path}/cancel")

    def retry(self, tasks: Sequence[str], *, fresh: bool) -> int:
        body = {"names": list(tasks), "fresh": fresh}
        path = f"{self._path}/retry"
        return self._api.read(Retried, "retrying", "POST", path, body).put_back

    def outputs(self) -> list[OutputDocument]:
        path = f"{self._path}/outputs"
        return self._api.read(OutputList, "listing outputs", "GET", path).outputs

    def download(self, name: str, to: Path) -> None:
        known = {output.name: output for output in self.outputs()}
        if name not in known:
            raise no_such_output(name, known)
        self._api.fetch_file(f"downloading {name}", f"{self._path}/outputs/{quote(name)}", to)
        if measured(to)[1] != known[name].sha256:
            raise StoreError(
                f"{name} arrived with other bytes than the server has.", remedy="Download it again."
            )
