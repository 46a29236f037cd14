"""Workers over HTTP: who there is. What is shown here decides no lease."""

from __future__ import annotations

from fastapi import APIRouter

from intermission.composition.fleet import Fleet
from intermission.operations.documents import WorkerList
from intermission.operations.worker_keys import Registry
from intermission.operations.workers import worker_list


def workers_router(fleet: Fleet, registry: Registry | None) -> APIRouter:
    router = APIRouter(tags=["workers"])

    @router.get("/workers", operation_id="listWorkers")
    def workers() -> WorkerList:
        """List the workers that are registered or hold a lease, and what hosts can't run now."""
        return worker_list(fleet, registry)

    return router
