"""What a worker's key opens: the calls that are described for workers, and no other."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from fastapi.routing import APIRoute
from pydantic import SecretStr

from intermission.composition.fleet import Fleet
from intermission.composition.registries import open_registry
from intermission.settings import Settings
from intermission.web.app import create_app
from intermission.web.worker_api import worker_router

WORKER = "/api/v1/worker/"


def test_there_is_no_call_for_workers_but_those_that_are_described(tmp_path: Path) -> None:
    settings = Settings(
        ledger=str(tmp_path / "ledger.sqlite"),
        store=str(tmp_path / "store"),
        admin_secret=SecretStr("swordfish"),
    )
    with closing(open_registry(settings)) as registry:
        fleet = Fleet(settings)
        app = create_app(fleet, registry)
        routes = worker_router(fleet, registry).routes
    paths = [route.path for route in routes if isinstance(route, APIRoute)]
    there = {path.replace(":path", "") for path in paths if path.startswith(WORKER)}
    described = {path for path in app.openapi()["paths"] if path.startswith(WORKER)}
    assert there == described
    assert len(there) == 13
