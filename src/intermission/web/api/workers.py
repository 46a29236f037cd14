"""Workers over HTTP: who there is. What is shown here decides no lease."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from pydantic import BaseModel

from intermission.composition.fleet import Fleet
from intermission.operations.documents import When
from intermission.operations.worker_keys import Registry
from intermission.operations.workers import State, refused, seen_workers


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


class RefusedDocument(BaseModel):
    """What a host can't run for now: it gave so many tasks back, the reason, and until when."""

    host: str
    code: str
    message: str
    tasks: int
    until: When


class WorkerList(BaseModel):
    workers: list[WorkerDocument]
    refused: list[RefusedDocument]


def workers_router(fleet: Fleet, registry: Registry | None) -> APIRouter:
    router = APIRouter(tags=["workers"])

    @router.get("/workers", operation_id="listWorkers")
    def workers() -> WorkerList:
        """List the workers that are registered or hold a lease, and what hosts can't run now."""
        rows = registry.workers() if registry is not None else []
        seen = seen_workers(rows, fleet.ledger.workers(), fleet.app.clock.now_ms())
        return WorkerList(
            workers=[WorkerDocument(**asdict(one)) for one in seen],
            refused=[RefusedDocument(**asdict(one)) for one in refused(fleet.ledger.refusals())],
        )

    return router
