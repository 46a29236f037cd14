"""Workers over HTTP: who there is. What is shown here decides no lease."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from intermission.app.fleet import Fleet
from intermission.app.look import timestamp
from intermission.ports.registry import Registry, WorkerRow
from intermission.web.api.shapes import When

OFFLINE_MS = 5 * 60 * 1000
"""Without a heartbeat for so long a worker counts as offline."""

State = Literal["active", "idle", "busy", "offline", "disabled"]


class WorkerShape(BaseModel):
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
    workers: list[WorkerShape]


def workers_router(fleet: Fleet, registry: Registry | None) -> APIRouter:
    router = APIRouter(tags=["workers"])

    @router.get("/workers", operation_id="listWorkers")
    def workers() -> WorkerList:
        """List the registered workers, and every other worker that holds a lease."""
        rows = registry.workers() if registry is not None else []
        now_ms = fleet.app.clock.now_ms()
        shapes = [_registered(row, now_ms) for row in rows]
        known = {row.id for row in rows}
        # In the ledger a registered worker's processes are named after its id: `id/process`.
        holders = (name for name in fleet.ledger.workers() if name.partition("/")[0] not in known)
        shapes += [_direct(name) for name in holders]
        return WorkerList(workers=shapes)

    return router


def state_of(row: WorkerRow, now_ms: int) -> State:
    """`busy` has no free slot, `active` some, `idle` nothing to do."""
    if row.revoked_ms is not None:
        return "disabled"
    if row.heard_ms is None or now_ms - row.heard_ms > OFFLINE_MS:
        return "offline"
    if row.busy == 0:
        return "idle"
    return "busy" if row.busy >= row.slots else "active"


def _registered(row: WorkerRow, now_ms: int) -> WorkerShape:
    return WorkerShape(
        id=row.id,
        name=row.name,
        state=state_of(row, now_ms),
        can=list(row.can),
        version=row.version,
        slots=row.slots,
        busy=row.busy,
        registered=timestamp(row.registered_ms),
        heard=None if row.heard_ms is None else timestamp(row.heard_ms),
    )


def _direct(name: str) -> WorkerShape:
    return WorkerShape(
        id=None,
        name=name,
        state="busy",
        can=[],
        version=None,
        slots=None,
        busy=None,
        registered=None,
        heard=None,
    )
