"""The server as one ASGI application: the public API, the worker API, and what looks after them.

This is where the web's parts are put together; none of them knows the others. It opens no
ledger before it is started.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI

from intermission.composition.fleet import Fleet
from intermission.composition.uploads import Uploads
from intermission.operations.idempotency import Repeats
from intermission.operations.worker_keys import Registry
from intermission.services.event_log_reader import EventLogReader
from intermission.services.metrics import Metrics
from intermission.services.supervisor import Service, Supervisor
from intermission.web.api.deferred import FILES as DEFERRED_FILES
from intermission.web.api.deferred import deferred_router
from intermission.web.api.event_broadcaster import EventBroadcaster
from intermission.web.api.events import events_router
from intermission.web.api.failures import failures_router
from intermission.web.api.health import health_router
from intermission.web.api.jobs import jobs_router
from intermission.web.api.known_parameters import known_parameters
from intermission.web.api.limits import limits_router
from intermission.web.api.metrics import metrics_router
from intermission.web.api.outputs import outputs_router
from intermission.web.api.sources import UPLOAD_MAX_BYTES, sources_router
from intermission.web.api.submission_policy import Admission
from intermission.web.api.tasks import tasks_router
from intermission.web.api.workers import workers_router
from intermission.web.auth import admin_only, secret_of
from intermission.web.middleware import Middleware
from intermission.web.problems import MEDIA_TYPE, documented, install
from intermission.web.worker_api import worker_router

API = "/api/v1"
WATCH_EVERY_S = 0.5
COUNT_EVERY_S = 1.0
READ_AGAIN_S = 2.0
"""The longest pause before the event log is read again: people wait for its events."""


def create_app(
    fleet: Fleet,
    registry: Registry | None = None,
    *,
    roots: Sequence[Path] = (),
    upload_max_bytes: int = UPLOAD_MAX_BYTES,
    services: Sequence[Service] = (),
) -> FastAPI:
    """The server over a fleet; with a registry, workers may connect through it.

    Clients may submit the pipelines of the fleet's catalog; files below `roots` may be sources;
    `services` run while it does, beside its own.
    """
    hub, metrics = EventBroadcaster(), Metrics(fleet.app.clock)
    supervisor = Supervisor([*_readers(fleet, hub, metrics), *services])
    app = FastAPI(
        title="Intermission",
        version="1",
        description="Media pipelines that survive interruption.",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a name with a slash behind it is another, and there is none
        lifespan=lambda _: _running(hub, supervisor),
    )
    app.state.hub = hub
    secret = fleet.settings.admin_secret
    exempt = (f"{API}/worker", f"{API}/sources/", f"{API}{DEFERRED_FILES}")
    app.add_middleware(Middleware, is_open=not secret_of(secret), exempt=exempt)
    install(app)
    uploads = Uploads(fleet.settings)
    admission = Admission(uploads, fleet.app.catalog, roots=roots)
    public = APIRouter(
        prefix=API,
        dependencies=[Depends(admin_only(secret)), Depends(known_parameters)],
        responses=documented(401, 403, 422, 503),
    )
    for router in (
        jobs_router(fleet, admission, Repeats(uploads.open())),
        tasks_router(fleet),
        deferred_router(fleet),
        events_router(fleet, hub),
        sources_router(uploads, upload_max_bytes=upload_max_bytes),
        outputs_router(fleet),
        limits_router(fleet),
        failures_router(fleet),
        workers_router(fleet, registry),
    ):
        public.include_router(router)
    if registry is not None:  # first, because a router is looked through from the top
        app.include_router(worker_router(fleet, registry))
    app.include_router(public)
    app.include_router(health_router(fleet, supervisor))
    app.include_router(metrics_router(metrics, supervisor))
    app.openapi = lambda: _described(app)
    return app


def _readers(fleet: Fleet, hub: EventBroadcaster, metrics: Metrics) -> list[Service]:
    """The services that read the event log: one tells it, one counts it."""
    broadcast = EventLogReader(
        fleet.open_ledger, hub.heard, every_s=WATCH_EVERY_S, from_start=False, on_open=hub.begin
    )
    count = EventLogReader(fleet.open_ledger, metrics.heard, every_s=COUNT_EVERY_S, from_start=True)
    return [
        Service("event stream", broadcast.run, pause_max_s=READ_AGAIN_S),
        Service("metrics", count.run, pause_max_s=READ_AGAIN_S),
    ]


@asynccontextmanager
async def _running(hub: EventBroadcaster, supervisor: Supervisor) -> AsyncIterator[None]:
    hub.open()
    supervisor.start()
    try:
        yield
    finally:
        hub.close()
        await to_thread.run_sync(supervisor.stop)


def _described(app: FastAPI) -> dict[str, Any]:
    """The API's description, in which a problem is never plain JSON.

    Endpoints that look at keys by themselves are said to, here.
    """
    schema = FastAPI.openapi(app)
    schemes = schema["components"]["securitySchemes"]
    schemes["workerKey"] = {"type": "http", "scheme": "bearer", "description": "A worker's key."}
    for path, item in schema["paths"].items():
        for operation in item.values():
            if path.startswith(f"{API}/"):
                key = "workerKey" if path.startswith(f"{API}/worker/") else "adminSecret"
                operation.setdefault("security", [{key: []}])
            for response in operation["responses"].values():
                content = response.get("content", {})
                if MEDIA_TYPE in content:
                    content.pop("application/json", None)
    return schema
