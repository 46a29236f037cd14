"""Limits over HTTP: how much may run of a job, a pipeline or with a label; pause and resume."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from intermission.composition.fleet import Fleet
from intermission.model import Limit
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
        default=None, ge=1, le=RUNNING_MAX, description="So many at a time."
    )
    per_minute: float | None = Field(
        default=None, ge=0.01, le=PER_MINUTE_MAX, description="So many begun in a minute."
    )


class LimitDocument(BaseModel):
    """A limit. Where `paused`, nothing begins, whatever the bounds are."""

    name: str
    running: int | None
    per_minute: float | None
    paused: bool


class LimitList(BaseModel):
    """Every limit, by name."""

    limits: list[LimitDocument]


def limits_router(fleet: Fleet) -> APIRouter:
    router = APIRouter(tags=["limits"])

    def known(name: str) -> Limit:
        """The limit of this name, which may bound nothing; raises `Problem` for no such job."""
        kind, _, key = name.partition(":")
        if kind == "job":
            job_row(fleet, key)
        return next((one for one in fleet.ledger.limits() if one.name == name), Limit(name))

    def kept(limit: Limit) -> LimitDocument:
        fleet.ledger.limit(limit)
        return LimitDocument(**asdict(limit))

    @router.get("/limits", operation_id="listLimits")
    def limits() -> LimitList:
        """List the limits that are set, and what is paused."""
        return LimitList(limits=[LimitDocument(**asdict(one)) for one in fleet.ledger.limits()])

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
        return kept(replace(known(name), running=body.running, per_minute=body.per_minute))

    @router.delete("/limits/{name}", operation_id="removeLimit", status_code=204)
    def remove_limit(name: Name) -> Response:
        """Remove the bounds under a name; what was paused goes on. Without any it is no error."""
        fleet.ledger.limit(Limit(name))
        return Response(status_code=204)

    @router.post("/limits/{name}/pause", operation_id="pause", responses=documented(404))
    def pause(name: Name) -> LimitDocument:
        """Begin no more tasks under a name; those that run go on."""
        return kept(replace(known(name), paused=True))

    @router.post("/limits/{name}/resume", operation_id="resume", responses=documented(404))
    def resume(name: Name) -> LimitDocument:
        """Begin tasks under a name again. One that was not paused stays as it is."""
        return kept(replace(known(name), paused=False))

    return router
