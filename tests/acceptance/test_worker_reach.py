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

WORKER = "/api/v1/worker/"


def test_there_is_no_call_for_workers_but_those_that_are_described(tmp_path: Path) -> None:
    settings = Settings(
        ledger=str(tmp_path / "ledger.sqlite"),
        store=str(tmp_path / "store"),
        admin_secret=SecretStr("swordfish"),
    )
    with closing(open_registry(settings)) as registry:
        app = create_app(Fleet(settings), registry)
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    there = {one.path.replace(":path", "") for one in routes if one.path.startswith(WORKER)}
    described = {path for path in app.openapi()["paths"] if path.startswith(WORKER)}
    assert there == described
    assert len(there) == 13
