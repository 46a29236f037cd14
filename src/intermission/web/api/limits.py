"""Limits over HTTP: how much may run of a job, a pipeline or with a label; pause and resume."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from intermission.composition.fleet import Fleet
from intermission.operations.documents import LimitDocument, LimitList
from intermission.operations.fleet_api import LedgerFleet
from intermission.web.api.jobs import job_row
from intermission.web.problems import Problem, documented

RUNNING_MAX = 1_000_000
PER_MINUTE_MAX = 1e9

Name = Annotated[
    str,
    Path(
        pattern=r"^(job:[0-9a-f]{40}|(pipeline|label):[^\x00-\x1f\x7f/\\]{1,200})$",
        description="`job:KEY` with the whole key, `pipeline:NAME` or `label:NAME`.",
    ),
]


class Bounds(BaseModel):
    """What may run under a name; null is no bound."""

    model_config = ConfigDict(extra="forbid")

    running: int | None = Field(
        default=None, strict=True, ge=1, le=RUNNING_MAX, description="So many at a time."
    )
    per_minute: float | None = Field(
        default=None,
        strict=True,
        ge=0.01,
        le=PER_MINUTE_MAX,
        description="So many begun in a minute.",
    )


def limits_router(fleet: Fleet) -> APIRouter:
    router = APIRouter(tags=["limits"])
    jobs = LedgerFleet(fleet)

    def checked(name: str) -> str:
        """The name itself; raises `Problem` for that of a job that is not there."""
        kind, _, key = name.partition(":")
        if kind == "job":
            job_row(fleet, key)
        return name

    @router.get("/limits", operation_id="listLimits")
    def limits() -> LimitList:
        """List the limits that are set, and what is paused."""
        return LimitList(limits=jobs.limits())

    @router.put("/limits/{name}", operation_id="setLimit", responses=documented(400, 404, 413))
    def set_limit(name: Name, body: Bounds) -> LimitDocument:
        """Bound how much runs under a name, over all workers. What is paused stays paused."""
        if body.running is None and body.per_minute is None:
            raise Problem(
                422,
                "A limit needs a bound",
                "expected running, per_minute or both; found neither.",
                remedy=f"DELETE /api/v1/limits/{name} removes the limit.",
            )
        return jobs.set_limit(checked(name), body.running, body.per_minute)

    @router.delete("/limits/{name}", operation_id="removeLimit", status_code=204)
    def remove_limit(
        name: Name,
        keep_pause: Annotated[
            bool, Query(description="What is paused stays paused; else it goes on.")
        ] = False,
    ) -> Response:
        """Remove the bounds under a name. Without any it is no error."""
        jobs.set_limit(name, None, None)
        if not keep_pause:
            jobs.set_paused(name, False)
        return Response(status_code=204)

    @router.post("/limits/{name}/pause", operation_id="pause", responses=documented(404))
    def pause(name: Name) -> LimitDocument:
        """Begin no more tasks under a name; those that run go on."""
        return jobs.set_paused(checked(name), True)

    @router.post("/limits/{name}/resume", operation_id="resume", responses=documented(404))
    def resume(name: Name) -> LimitDocument:
        """Begin tasks under a name again. One that was not paused stays as it is."""
        return jobs.set_paused(checked(name), False)

    return router
