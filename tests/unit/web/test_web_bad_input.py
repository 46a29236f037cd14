"""What nobody should send, to every endpoint of both APIs: a 4xx with a reason, and no change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient

from intermission import __version__
from intermission.backends.http.work_schema import API
from intermission.composition.fleet import Fleet
from intermission.composition.registries import open_registry
from intermission.model import identity
from intermission.ports.registry import Registry
from intermission.settings import Settings
from intermission.testing.jobs import fan_job, submit
from intermission.web.app import create_app

SECRET = "swordfish"
KEY = identity("bad input")
DEEP = 10_000
Route = tuple[str, str]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    folder = tmp_path_factory.mktemp("fleet")
    fleet = Fleet(
        Settings(
            ledger=str(folder / "ledger.sqlite"),
            store=str(folder / "store"),
            admin_secret=SecretStr(SECRET),
        )
    )
    submit(fleet.ledger, fan_job(key=KEY))
    return fleet


@pytest.fixture(scope="module")
def registry(fleet: Fleet) -> Iterator[Registry]:
    with closing(open_registry(fleet.settings)) as registry:
        yield registry


@pytest.fixture(scope="module")
def client(fleet: Fleet, registry: Registry) -> Iterator[TestClient]:
    app = create_app(fleet, registry)
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def routes(client: TestClient) -> list[Route]:
    """Every operation, with names that are well formed."""
    real = {"job": KEY, "area": "store", "id": "1", "token": "t"}
    found: list[Route] = []
    for path, item in client.get("/api/v1/openapi.json").json()["paths"].items():
        names = real | {"name": "pipeline:x" if "limits" in path else "x"}
        names["key"] = "self-test/a" if "/worker/" in path else KEY
        if not path.endswith("/stream"):
            found += [(method.upper(), path.format(**names)) for method in item]
    return found


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def refused(answer: Any, what: object) -> None:
    assert 400 <= answer.status_code < 500, (what, answer.status_code, answer.text[:300])
    assert answer.headers["content-type"] == "application/problem+json", what
    assert answer.json()["detail"], what


def register(client: TestClient, **fields: Any) -> tuple[str, str]:
    asked = {"name": "box", "version": __version__, **fields}
    answer = client.post("/api/v1/workers", json=asked, headers=bearer(SECRET)).json()
    return answer["id"], answer["key"]


def test_a_key_that_opens_nothing_opens_nothing(client: TestClient, routes: list[Route]) -> None:
    revoked_id, revoked = register(client)
    client.delete(f"/api/v1/workers/{revoked_id}", headers=bearer(SECRET))
    rotated_id, rotated = register(client)
    client.post(f"/api/v1/workers/{rotated_id}/rotate", json={}, headers=bearer(SECRET))
    _, good = register(client)
    altered = good[:-1] + ("a" if good[-1] != "a" else "b")
    of_workers = [route for route in routes if route[1].startswith(f"{API}/")]
    assert len(of_workers) > 10
    for method, path in of_workers:
        for key in (revoked, rotated, altered, "imw_", "imw_12345678_" + "a" * 43):
            answer = client.request(method, path, headers=bearer(key))
            refused(answer, (method, path))
            assert answer.status_code == 401, (method, path)
        for headers in ({}, bearer(""), {"Authorization": "Basic abc"}):
            answer = client.request(method, path, headers=headers)
            assert answer.status_code == 401, (method, path)
        assert client.request(method, path, headers=bearer("guess")).status_code == 401
    for method, path in routes:
        if path.startswith(f"{API}/") or not path.startswith("/api/v1"):
            continue
        assert client.request(method, path, headers=bearer(good)).status_code == 403, path


BODIES = {
    "no JSON": b"{",
    "text": b"\xff\xfe",
    "a list": b"[1]",
    "a number": b"9" * 5000,
    "not a number": b'{"running": NaN, "priority": NaN, "slots": NaN, "keep_s": NaN, "tasks": NaN}',
    "without end": b'{"running": 1e999, "priority": 1e999, "slots": 1e999, "keep_s": 1e999}',
    "unknown": b'{"nobody_knows": 1}',
    "deep": b"[" * DEEP + b"]" * DEEP,
    "deep and cut": b'{"a":' * DEEP,
    "deep inside": b'{"params": {"a": ' + b"[" * DEEP + b"]" * DEEP + b"}}",
    "half a pair": b'{"pipeline": "\\ud800", "name": "\\ud800", "error": "\\ud800"}',
}


@pytest.mark.parametrize("body", BODIES)
def test_no_body_is_taken_for_another(
    client: TestClient, fleet: Fleet, routes: list[Route], body: str
) -> None:
    _, key = register(client)
    before = fleet.ledger.events(limit=1000)
    for method, path in routes:
        # Nothing is read of these: an upload takes any bytes, the others none at all.
        if method not in ("POST", "PUT") or path.endswith(
            ("/sources/x", "/cancel", "/pause", "/resume")
        ):
            continue
        secret = key if path.startswith(f"{API}/") else SECRET
        headers = bearer(secret) | {"Content-Type": "application/json"}
        refused(client.request(method, path, content=BODIES[body], headers=headers), (method, path))
    assert fleet.ledger.events(limit=1000) == before
    assert fleet.ledger.limits() == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_form_can_send_is_no_json(client: TestClient, fleet: Fleet, kind: str) -> None:
    headers = bearer(SECRET) | {"Content-Type": kind}
    for method, path, body in (
        ("POST", "/api/v1/jobs", {"pipeline": "x", "source": "upload:x"}),
        ("PUT", "/api/v1/limits/pipeline:x", {"running": 1}),
        ("POST", "/api/v1/failures/retry", {"pipeline": "x"}),
        ("POST", f"/api/v1/jobs/{KEY}/retry", {"tasks": [1]}),
    ):
        content = json.dumps(body).encode()
        refused(client.request(method, path, content=content, headers=headers), path)
    assert fleet.ledger.limits() == []


def test_other_methods_are_not_allowed(client: TestClient, routes: list[Route]) -> None:
    known: dict[str, set[str]] = {}
    for method, path in routes:
        known.setdefault(path, set()).add(method)
    for path, methods in known.items():
        for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"} - methods:
            answer = client.request(method, path, headers=bearer(SECRET))
            refused(answer, (method, path))
            assert answer.status_code == 405, (method, path)
            assert set(answer.headers["allow"].split(", ")) - {"HEAD"} <= methods, path
        head = client.head(path, headers=bearer(SECRET))
        assert head.status_code < 500, path
        assert not head.content, path


NAMES = [
    *(
        "%2e%2e",
        "..%2f",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "..%5c..%5cx",
        "a%5cb",
        "%2fetc%2fpasswd",
    ),
    *("%00", "a%00b", "%0a", "a%0d%0ab", "%ff", "%c0%ae%c0%ae", "%252e%252e%252f", "x" * 5000),
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_anywhere_else(client: TestClient, routes: list[Route], name: str) -> None:
    for part in (KEY, "pipeline:x", "/x", "/store", "/1", "self-test/a"):
        for method, path in routes:
            if not path.endswith(part) and f"{part}/" not in path:
                continue
            sent = path.replace(part, "/" + name if part.startswith("/") else name)
            secret = bearer(SECRET)
            answer = client.request(method, sent, headers=secret, content=b"{}")
            if answer.status_code == 204 and method == "DELETE":
                continue  # nothing was there
            refused(answer, (method, sent))


def test_another_site_reaches_nothing(registry: Registry, fleet: Fleet) -> None:
    settings = fleet.settings.model_copy(update={"admin_secret": None})
    app = create_app(Fleet(settings), registry)
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        paths = ["/api/v1/jobs", f"{API}/claim", "/api/v1/limits/pipeline:x/pause"]
        for path in [*paths, "/api/v1/openapi.json", "/metrics", "/livez"]:
            for method in ("GET", "POST", "PUT", "OPTIONS", "HEAD"):
                for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example"):
                    answer = client.request(method, path, headers={"Host": host})
                    assert answer.status_code == 403, (method, path, host)
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://localhost:81"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            for path in paths:
                refused(client.post(path, headers=headers | {"Content-Type": "text/plain"}), path)
    assert fleet.ledger.limits() == []
