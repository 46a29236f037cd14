"""What a worker's key opens: the described calls, by a lease's token where it is about a task."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import SecretStr

from intermission import __version__
from intermission.composition.fleet import Fleet
from intermission.composition.registries import open_registry
from intermission.settings import Settings
from intermission.web.app import create_app

SECRET = "swordfish"
WORKER = "/api/v1/worker/"


def test_a_key_opens_no_call_but_those_that_are_described(tmp_path: Path) -> None:
    settings = Settings(
        ledger=str(tmp_path / "ledger.sqlite"),
        store=str(tmp_path / "store"),
        admin_secret=SecretStr(SECRET),
    )
    with closing(open_registry(settings)) as registry:
        app = create_app(Fleet(settings), registry)
        routes = [route for route in app.routes if isinstance(route, APIRoute)]
        described = app.openapi()["paths"]
        with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
            admin = {"Authorization": f"Bearer {SECRET}"}
            asked = {"name": "box", "version": __version__}
            key = client.post("/api/v1/workers", json=asked, headers=admin).json()["key"]
            worker = {"Authorization": f"Bearer {key}"}
            for path, item in described.items():
                if path.startswith(WORKER) or not path.startswith("/api/v1/"):
                    continue
                for method in item:
                    answer = client.request(method, path, headers=worker)
                    assert answer.status_code == 403, (method, path)
        calls = {route.path for route in routes if route.path.startswith(WORKER)}
        assert {path.replace(":path", "") for path in calls} <= set(described)
