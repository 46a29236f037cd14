"""Jobs over HTTP: submit, list, look at, cancel, retry."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Header, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field, field_validator

from intermission.composition.fleet import Fleet
from intermission.composition.locations import Location, as_location, is_url, uri_of
from intermission.errors import NotFound, UsageError
from intermission.model import JobRow, JobState, Source, canonical
from intermission.operations.documents import JobDocument, JobPage, PrunedPage, Retried
from intermission.operations.fleet_api import ENDED, LedgerFleet
from intermission.operations.idempotency import Repeats
from intermission.operations.job_handle import LedgerJob
from intermission.operations.job_lookup import found_row
from intermission.services.source_hashing import SourceHashing
from intermission.web.api.paging import NUMBER_MAX, Cursor, Limit, page
from intermission.web.api.submission_policy import Admission
from intermission.web.problems import Problem, documented, kind_of

PRIORITY_MAX = 1000
RETRIED_MAX = 10_000

JobKey = Annotated[str, Path(pattern=r"^[0-9a-f]{40}$", description="A job's whole key.")]
TaskId = Annotated[int, Field(ge=1, le=NUMBER_MAX)]
TaskName = Annotated[str, Field(min_length=1, max_length=300)]


class Submission(BaseModel):
    """A pipeline to run over a source."""

    model_config = ConfigDict(extra="forbid")

    pipeline: str = Field(min_length=1, max_length=1000, description="One this server offers.")
    source: str = Field(
        min_length=1,
        max_length=4000,
        description="`upload:NAME`, the URL of an object, or an absolute path the server allows.",
    )
    params: dict[str, Any] = Field(default={}, description="The pipeline's parameters.")
    priority: int = Field(
        default=0, ge=-PRIORITY_MAX, le=PRIORITY_MAX, description="A higher number goes first."
    )

    not_before_ms: int = Field(
        default=0, ge=0, le=NUMBER_MAX, description="Milliseconds since 1970: no sooner."
    )

    @field_validator("params")
    @classmethod
    def _is_json(cls, params: dict[str, Any]) -> dict[str, Any]:
        # Python's parser takes NaN and half a surrogate pair, which nobody could be sent again.
        try:
            json.dumps(params, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            raise ValueError("a parameter is no JSON value") from None
        return params


class Retry(BaseModel):
    """Which tasks to try again; every failed or cancelled one unless some are given."""

    model_config = ConfigDict(extra="forbid")

    tasks: list[TaskId] | None = Field(
        default=None, min_length=1, max_length=RETRIED_MAX, description="Their numbers."
    )
    names: list[TaskName] = Field(default=[], max_length=RETRIED_MAX, description="Their names.")
    fresh: bool = Field(
        default=False,
        strict=True,
        description="What is done runs again as well: the named tasks, or else the whole job.",
    )


class Prune(BaseModel):
    """Which ended jobs to forget."""

    model_config = ConfigDict(extra="forbid")

    older_than_s: float = Field(strict=True, ge=0, le=1e10, allow_inf_nan=False)
    states: list[JobState] = Field(default=list(ENDED), min_length=1, max_length=len(ENDED))
    pipeline: str | None = Field(default=None, max_length=1000)
    dry_run: bool = Field(default=False, strict=True, description="Only say which they are.")
    cursor: str | None = Field(
        default=None, pattern=r"^[0-9]{1,18}$", description="The `next` of the page before."
    )

    @field_validator("states")
    @classmethod
    def _have_ended(cls, states: list[JobState]) -> list[JobState]:
        if not set(states) <= set(ENDED):
            raise ValueError(f"expected states among {', '.join(ENDED)}")
        return states


def job_row(fleet: Fleet, key: str) -> JobRow:
    """The job with this key, or the problem that there is none."""
    for row in fleet.ledger.jobs(key):
        return row
    raise Problem(
        404,
        "No such job",
        f"there is no job {key}.",
        remedy="GET /api/v1/jobs lists them.",
        type=kind_of(NotFound),
    )


def job_handle(fleet: Fleet, key: str) -> LedgerJob:
    """The job with this key as commands handle it, or the problem that there is none."""
    return LedgerJob(found_row(fleet.app, fleet.ledger, job_row(fleet, key)))


@dataclass(frozen=True)
class Sent:
    """A submission as it came."""

    body: Submission
    text: str
    idempotency_key: str | None


class Submissions:
    """What a submission is made into a job by, step by step."""

    def __init__(self, fleet: Fleet, admission: Admission, repeats: Repeats) -> None:
        self.hashing = SourceHashing(fleet)
        self._fleet = fleet
        self._admission = admission
        self._repeats = repeats

    def repeated(self, sent: Sent) -> JobRow | None:
        """The job that the same request has made before, if it is still there."""
        key = self._noted(sent)
        return None if key is None else next(iter(self._fleet.ledger.jobs(key)), None)

    def locate(self, sent: Sent) -> Location:
        """Where the source is, if the request may have it."""
        self._admission.pipeline(sent.body.pipeline)
        return self._admission.place(sent.body.source)

    def put(self, sent: Sent, place: Location, source: Source | None) -> tuple[JobRow, bool]:
        """The job, and whether it is new."""
        body = sent.body
        key, is_new = self._fleet.submit(
            self._admission.pipeline(body.pipeline),
            place,
            self._admission.params(body.params),
            priority=body.priority,
            not_before_ms=body.not_before_ms,
            source=source,
        )
        if sent.idempotency_key is not None:
            forgotten = self._noted(sent)
            if forgotten is not None and self._fleet.ledger.jobs(forgotten):
                return job_row(self._fleet, forgotten), is_new
            key = self._repeats.remember(sent.idempotency_key, sent.text, key, forgotten=forgotten)
        return job_row(self._fleet, key), is_new

    def _noted(self, sent: Sent) -> str | None:
        if sent.idempotency_key is None:
            return None
        return self._repeats.job_of(sent.idempotency_key, sent.text)


def jobs_router(fleet: Fleet, admission: Admission, repeats: Repeats) -> APIRouter:
    submissions = Submissions(fleet, admission, repeats)
    router = APIRouter(tags=["jobs"])
    router.include_router(_changes(fleet))

    @router.post(
        "/jobs",
        operation_id="submitJob",
        status_code=202,
        responses={200: {"model": JobDocument, "description": "The job was known"}}
        | documented(400, 404, 409, 413),
    )
    async def submit(
        body: Submission,
        response: Response,
        idempotency_key: Annotated[str | None, Header(pattern=r"^[!-~]{1,255}$")] = None,
    ) -> JobDocument:
        """Submit a job. The same work joins the job that is there, and answers 200."""
        sent = Sent(body, canonical(body.model_dump()), idempotency_key)
        row = await to_thread.run_sync(submissions.repeated, sent)
        response.status_code = 200
        if row is None:
            place = await to_thread.run_sync(submissions.locate, sent)
            source = None
            if isinstance(place, FilePath):  # it may take long, and no thread waits for it
                source = await asyncio.wrap_future(submissions.hashing.source(place))
            row, is_new = await to_thread.run_sync(submissions.put, sent, place, source)
            response.status_code = 202 if is_new else 200
        response.headers["Location"] = f"/api/v1/jobs/{row.job.key}"
        return JobDocument.of(row)

    @router.get("/jobs", operation_id="listJobs")
    def jobs(
        state: Annotated[list[JobState], Query(max_length=10)] = [],  # noqa: B006
        pipeline: Annotated[str | None, Query(max_length=1000)] = None,
        source: Annotated[str | None, Query(max_length=4000)] = None,
        key: Annotated[
            str, Query(pattern=r"^[0-9a-f]{0,40}$", description="How the key begins.")
        ] = "",
        cursor: Cursor = None,
        limit: Limit = 100,
    ) -> JobPage:
        """List jobs, newest first; those that meet every condition given."""
        rows = fleet.ledger.jobs(
            key,
            states=state,
            pipeline=pipeline,
            source=None if source is None else _uri(source),
            before=int(cursor) if cursor else None,
            limit=limit + 1,
        )
        shown, following = page(rows, lambda row: row.id, limit)
        return JobPage(jobs=[JobDocument.of(row).brief() for row in shown], next=following)

    @router.get("/jobs/{key}", operation_id="getJob", responses=documented(404))
    def job(key: JobKey) -> JobDocument:
        """Show a job, with its tasks counted by step and state."""
        return JobDocument.of(job_row(fleet, key))

    return router


def _changes(fleet: Fleet) -> APIRouter:
    router = APIRouter()

    @router.post("/jobs/{key}/cancel", operation_id="cancelJob", responses=documented(404, 409))
    def cancel(key: JobKey) -> JobDocument:
        """Cancel a job: workers stop its running tasks, and what is done stays done."""
        try:
            return job_handle(fleet, key).cancel()
        except UsageError as e:
            kind = kind_of(UsageError)
            raise Problem(409, "The job has ended", e.message, remedy=e.remedy, type=kind) from e

    @router.post("/jobs/{key}/retry", operation_id="retryJob", responses=documented(400, 404, 413))
    def retry(key: JobKey, body: Retry | None = None) -> Retried:
        """Give failed or cancelled tasks of a job a fresh set of attempts."""
        asked, row = body or Retry(), job_row(fleet, key)
        if asked.tasks is not None:
            put_back = fleet.ledger.retry(key, asked.tasks)
        elif asked.fresh and not asked.names:
            fleet.start_over(row.job)
            put_back = job_row(fleet, key).total()
        else:
            put_back = job_handle(fleet, key).retry(asked.names, fresh=asked.fresh)
        return Retried(put_back=put_back, job=JobDocument.of(job_row(fleet, key)))

    @router.post("/prune", operation_id="pruneJobs", responses=documented(400, 413))
    def prune(body: Prune) -> PrunedPage:
        """Forget jobs that ended long ago; their receipts, artifacts and outputs stay."""
        return LedgerFleet(fleet).prune(**body.model_dump())

    return router


def _uri(source: str) -> str:
    """The URI of what a job shows as its source; of no job's, where it is none."""
    try:
        return uri_of(as_location(source) if is_url(source) else FilePath(source))
    except ValueError:  # a path that is not absolute
        return ""
