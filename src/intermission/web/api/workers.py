"""Workers over HTTP: who there is. What is shown here decides no lease."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from pydantic import BaseModel

from intermission.composition.fleet import Fleet
from intermission.operations.documents import When
from intermission.operations.worker_keys import Registry
from intermission.operations.workers import State, seen_workers


class WorkerDocument(BaseModel):
    """A worker. One that uses the ledger directly is known by its leases alone: no `id`."""

    id: str | None
    name: str
    state: State
    can: list[str]
    version: str | None
    slots: int | None
    busy: int | None
    registered: When | None
    heard: When | None


class WorkerList(BaseModel):
    workers: list[WorkerDocument]


def workers_router(fleet: Fleet, registry: Registry | None) -> APIRouter:
    router = APIRouter(tags=["workers"])

    @router.get("/workers", operation_id="listWorkers")
    def workers() -> WorkerList:
        """List the registered workers, and every other worker that holds a lease."""
        rows = registry.workers() if registry is not None else []
        seen = seen_workers(rows, fleet.ledger.workers(), fleet.app.clock.now_ms())
        return WorkerList(workers=[WorkerDocument(**asdict(one)) for one in seen])

    return router
