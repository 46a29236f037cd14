"""Failures over HTTP: what failed for good in all jobs, grouped; once more with all of it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from intermission.composition.fleet import Fleet
from intermission.operations.documents import FailureList, PutBack
from intermission.operations.fleet_api import LedgerFleet
from intermission.web.problems import documented

JOBS_SHOWN = 1000
"""Of a group that has more, the newest are named."""


class Which(BaseModel):
    """Which failures; all that are not told apart by what is given."""

    model_config = ConfigDict(extra="forbid")

    pipeline: str | None = Field(default=None, max_length=1000)
    step: str | None = Field(default=None, max_length=200)
    error: str | None = Field(default=None, max_length=200, description="Such as `TimedOut`.")


def failures_router(fleet: Fleet) -> APIRouter:
    router = APIRouter(tags=["failures"])
    jobs = LedgerFleet(fleet, jobs_max=JOBS_SHOWN)

    @router.get("/failures", operation_id="listFailures")
    def failures(
        pipeline: Annotated[str | None, Query(max_length=1000)] = None,
        step: Annotated[str | None, Query(max_length=200)] = None,
        error: Annotated[str | None, Query(max_length=200)] = None,
    ) -> FailureList:
        """List what failed for good in all jobs, grouped by pipeline, step and error."""
        return FailureList(failures=jobs.failures(pipeline=pipeline, step=step, error=error))

    @router.post("/failures/retry", operation_id="retryFailures", responses=documented(400, 413))
    def retry(body: Which | None = None) -> PutBack:
        """Give what failed a fresh set of attempts: all of it, or the groups that fit."""
        return PutBack(put_back=jobs.retry_failures(**(body or Which()).model_dump()))

    return router
