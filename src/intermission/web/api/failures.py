"""Failures over HTTP: what failed for good in all jobs, grouped; once more with all of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from intermission.composition.event_log import timestamp
from intermission.composition.fleet import Fleet
from intermission.operations.documents import When
from intermission.operations.failures import FailureGroup, failure_groups, put_back_all
from intermission.web.problems import documented

JOBS_SHOWN = 100
"""Of a group that has more, the newest are named."""


class FailureDocument(BaseModel):
    """Tasks of one step that failed with the same kind of error; `message` is the latest."""

    pipeline: str
    step: str
    error: str
    count: int
    message: str
    last: When
    jobs: list[str] = Field(description=f"The newest, {JOBS_SHOWN} at most.")

    @classmethod
    def of(cls, group: FailureGroup) -> FailureDocument:
        return cls(
            pipeline=group.pipeline,
            step=group.step,
            error=group.error,
            count=group.count,
            message=group.message,
            last=timestamp(group.last_ms),
            jobs=list(group.tasks)[:JOBS_SHOWN],
        )


class FailureList(BaseModel):
    """The most frequent first."""

    failures: list[FailureDocument]


class Which(BaseModel):
    """Which failures; all that are not told apart by what is given."""

    model_config = ConfigDict(extra="forbid")

    pipeline: str | None = Field(default=None, max_length=1000)
    step: str | None = Field(default=None, max_length=200)
    error: str | None = Field(default=None, max_length=200, description="Such as `TimedOut`.")


class PutBack(BaseModel):
    """How many tasks were put back."""

    put_back: int


def failures_router(fleet: Fleet) -> APIRouter:
    router = APIRouter(tags=["failures"])

    @router.get("/failures", operation_id="listFailures")
    def failures(
        pipeline: Annotated[str | None, Query(max_length=1000)] = None,
        step: Annotated[str | None, Query(max_length=200)] = None,
        error: Annotated[str | None, Query(max_length=200)] = None,
    ) -> FailureList:
        """List what failed for good in all jobs, grouped by pipeline, step and error."""
        groups = failure_groups(fleet.ledger, pipeline=pipeline, step=step, error=error)
        return FailureList(failures=[FailureDocument.of(group) for group in groups])

    @router.post("/failures/retry", operation_id="retryFailures", responses=documented(400, 413))
    def retry(body: Which | None = None) -> PutBack:
        """Give what failed a fresh set of attempts: all of it, or the groups that fit."""
        which = {} if body is None else body.model_dump()
        put_back = put_back_all(fleet.ledger, failure_groups(fleet.ledger, **which))
        if put_back:
            fleet.notify()
        return PutBack(put_back=put_back)

    return router
