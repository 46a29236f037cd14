"""Is the server there, and can it do anything? For whoever restarts it or sends it requests."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from intermission.composition.fleet import Fleet
from intermission.errors import IntermissionError
from intermission.services.supervisor import Service, Supervisor
from intermission.web.problems import RETRY_AFTER_S, Problem, documented


class Health(BaseModel):
    status: str


class ServiceShape(BaseModel):
    """Something the server does by itself. `error` is why it last failed, until it works again."""

    name: str
    essential: bool
    restarts: int
    error: str | None

    @classmethod
    def of(cls, service: Service) -> ServiceShape:
        error = None if service.error is None else _told(service.error)
        return cls(
            name=service.name,
            essential=service.is_essential,
            restarts=service.restarts,
            error=error,
        )


class Readiness(Health):
    services: list[ServiceShape]


def health_router(fleet: Fleet, supervisor: Supervisor) -> APIRouter:
    router = APIRouter(tags=["operations"])

    @router.get("/livez", operation_id="livez")
    async def live() -> Health:
        """Answer: the process is there. Whatever else is wrong, a restart would not help."""
        return Health(status="ok")

    @router.get("/readyz", operation_id="readyz", responses=documented(503))
    def ready() -> Readiness:
        """Answer if the ledger does and every essential service works; tell how each is doing."""
        fleet.ledger.events(0, limit=1)
        failing = supervisor.failing()
        if failing is not None and failing.error is not None:
            raise Problem(
                503,
                "A service of the server fails",
                f"{failing.name} failed: {_told(failing.error)}",
                remedy="It is tried again by itself; the server's log says more.",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        return Readiness(
            status="ok", services=[ServiceShape.of(service) for service in supervisor.services]
        )

    return router


def _told(error: Exception) -> str:
    """Anybody may ask for health, and an unexpected error may quote what it was about."""
    return error.message if isinstance(error, IntermissionError) else type(error).__name__
