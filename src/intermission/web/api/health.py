"""Is the server there, and can it do anything? For whoever restarts it or sends it requests."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import BaseModel

from intermission.composition.fleet import Fleet
from intermission.web.api.event_log_reader import Tail
from intermission.web.problems import documented


class Health(BaseModel):
    status: str


def health_router(fleet: Fleet, tails: Sequence[Tail]) -> APIRouter:
    router = APIRouter(tags=["operations"])

    @router.get("/livez", operation_id="livez")
    async def live() -> Health:
        """Answer: the process is there. Whatever else is wrong, a restart would not help."""
        return Health(status="ok")

    @router.get("/readyz", operation_id="readyz", responses=documented(503))
    def ready() -> Health:
        """Answer if the ledger does."""
        fleet.ledger.events(0, limit=1)
        for tail in tails:
            if tail.error is not None:
                raise tail.error
        return Health(status="ok")

    return router
