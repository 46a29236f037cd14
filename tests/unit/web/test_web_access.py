"""Who gets in: secrets, strangers' pages, bodies without end; and what is open to everybody."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient
from web_jobs import Connect, job_over

from intermission.composition.fleet import Fleet
from intermission.composition.registries import open_registry
from intermission.errors import LedgerError
from intermission.operations.workers import OFFLINE_MS, state_of
from intermission.ports.registry import KeyRow, WorkerRow
from intermission.testing.jobs import submit
from intermission.web import middleware
from intermission.web.middleware import BODY_MAX_BYTES, is_loopback

SECRET = "a long and secret sentence, ähnlich"


@pytest.fixture
def guarded(connect: Connect) -> TestClient:
    return connect({"admin_secret": SecretStr(SECRET)})


def routes(client: TestClient) -> Iterator[tuple[str, str]]:
    """Every operation of the public API, with names that are well formed."""
    for path, item in client.get("/api/v1/openapi.json").json()["paths"].items():
        real = path.replace("{key}", "0" * 40).replace("{id}", "1").replace("{name}", "x")
        yield from ((method, real) for method in item)


def bearer(secret: str) -> dict[str, Any]:
    return {"Authorization": f"Bearer {secret}".encode()}


def test_with_a_secret_every_call_needs_it(guarded: TestClient) -> None:
    operations = [route for route in routes(guarded) if route[1].startswith("/api/v1")]
    assert len(operations) > 12
    for method, path in operations:
        missing = guarded.request(method, path)
        assert missing.status_code == 401, path
        assert missing.headers["www-authenticate"] == "Bearer"
        assert missing.headers["content-type"] == "application/problem+json"
        for wrong in ("x", SECRET[:-1], SECRET + "x"):
            answer = guarded.request(method, path, headers=bearer(wrong))
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["remedy"]
        other = guarded.request(method, path, headers={"Authorization": f"Basic {'x' * 20}"})
        assert other.status_code == 401, path
    for path in ("/livez", "/readyz", "/metrics"):
        assert guarded.get(path).status_code in (200, 503)  # where the log is not read yet


def test_the_secret_opens(connect: Connect) -> None:
    client = connect({"admin_secret": SecretStr("plain")})
    assert client.get("/api/v1/jobs", headers=bearer("plain")).status_code == 200
    assert (
        client.get("http://fleet.example/api/v1/jobs", headers=bearer("plain")).status_code == 200
    )


def test_without_a_secret_only_this_machines_names_are_answered(connect: Connect) -> None:
    client = connect()
    for host in ("evil.example", "localhost.evil.example", "10.0.0.1", "[2001:db8::1]:80", ""):
        answer = client.get("/api/v1/jobs", headers={"Host": host})
        assert answer.status_code == 403, host
        assert "admin_secret" in answer.json()["remedy"]
    for host in ("localhost", "localhost:8400", "127.0.0.1:1", "[::1]:8400"):
        assert client.get("/api/v1/jobs", headers={"Host": host}).status_code == 200, host


def test_a_strangers_page_changes_nothing(connect: Connect, fleet: Fleet, tmp_path: Path) -> None:
    client = connect()
    made = submit(fleet.ledger, job_over(tmp_path / "a.txt"))
    path = f"/api/v1/jobs/{made.key}/cancel"
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        assert client.post(path, headers=headers).status_code == 403
        assert fleet.ledger.jobs(made.key)[0].state == "pending"
    assert client.post(path, headers={"Origin": "http://localhost"}).status_code == 200


def test_a_body_has_a_limit(connect: Connect) -> None:
    client = connect()
    declared = client.post("/api/v1/jobs", content=bytes(BODY_MAX_BYTES + 1))
    undeclared = client.post("/api/v1/jobs", content=itertools.repeat(bytes(2**16), 20))
    for answer in (declared, undeclared):
        assert answer.status_code == 413
        assert str(BODY_MAX_BYTES) in answer.json()["detail"]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_body_may_not_take_for_ever(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODY_S", 0.2)
    said: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.01)  # it trickles, and is never silent for long
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Any) -> None:
        said.append(message)

    monkeypatch.setattr(middleware, "DISCARD_S", 0.1)
    headers = [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "method": "POST", "path": "/api/v1/jobs", "query_string": b""}
    app: Any = connect().app
    asyncio.run(app({**scope, "headers": headers}, receive, send))
    assert said[0]["status"] == 408


def test_what_is_not_there_is_a_problem(connect: Connect) -> None:
    client = connect()
    for answer, status in (
        (client.get("/api/v1/nothing"), 404),
        (client.delete("/api/v1/jobs"), 405),
        (client.get("/api/v1/jobs", params={"limit": 0}), 422),
        (client.get("/api/v1/jobs", params={"cursor": "x"}), 422),
        (client.get("/api/v1/jobs", params={"stat": "failed"}), 422),
        (client.get("/api/v1/jobs/short"), 422),
        (client.get("/api/v1/events/stream", params={"job": "x"}), 422),
        (client.get("/api/v1/events/stream", params={"job": "0" * 40}), 404),
        (client.get("/api/v1/events/stream", headers={"Last-Event-ID": "x"}), 422),
    ):
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_server_whose_ledger_is_away_is_alive_but_not_ready(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()
    assert client.get("/readyz").status_code == 200

    def away(_: Fleet) -> None:
        raise LedgerError("the ledger is away.", remedy="Wait for it.")

    monkeypatch.setattr(Fleet, "ledger", property(away))
    for path in ("/readyz", "/api/v1/jobs"):
        answer = client.get(path)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert answer.json()["remedy"] == "Wait for it."
    assert client.get("/livez").status_code == 200


def test_an_error_nobody_expected_tells_nothing_of_itself(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()

    def broken(_: Fleet) -> None:
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(Fleet, "ledger", property(broken))
    answer = client.get("/api/v1/jobs")
    assert answer.status_code == 500
    assert "swordfish" not in answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_workers_without_a_registry_are_those_with_leases(
    connect: Connect, fleet: Fleet, tmp_path: Path
) -> None:
    client = connect()
    assert client.get("/api/v1/workers").json() == {"workers": [], "refused": []}
    submit(fleet.ledger, job_over(tmp_path / "a.txt"))
    fleet.ledger.claim("laptop-1", 1, lease_ttl_s=60)
    (worker,) = client.get("/api/v1/workers").json()["workers"]
    assert (worker["name"], worker["state"], worker["id"]) == ("laptop-1", "busy", None)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "idle"),
        ({"busy": 1}, "active"),
        ({"busy": 2}, "busy"),
        ({"heard_ms": None}, "offline"),
        ({"heard_ms": 0}, "offline"),
        ({"revoked_ms": 1}, "disabled"),
    ],
)
def test_the_state_of_a_worker(changes: dict[str, Any], state: str) -> None:
    now_ms = 2 * OFFLINE_MS
    facts = {"heard_ms": now_ms - OFFLINE_MS, "slots": 2, **changes}
    row = WorkerRow("id", "name", (), {}, "1", 0, b"", **facts)
    assert state_of(row, now_ms) == state


def test_what_is_loopback() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "localhost.x", "", "*"]))


def test_registered_workers_are_shown_by_their_state(
    connect: Connect, fleet: Fleet, tmp_path: Path
) -> None:
    with closing(open_registry(fleet.settings)) as registry:
        row = WorkerRow("gpu-1", "gpu", ("gpu",), {}, "1.0", 0, b"x")
        registry.register(row, KeyRow("imw_1", "0" * 64))
        client = connect({"admin_secret": SecretStr("plain")}, registry=registry)

        def listed() -> list[Any]:
            return client.get("/api/v1/workers", headers=bearer("plain")).json()["workers"]

        assert [(one["id"], one["state"], one["can"]) for one in listed()] == [
            ("gpu-1", "offline", ["gpu"])
        ]
        now_ms = fleet.app.clock.now_ms()
        registry.seen("gpu-1", at_ms=now_ms, slots=1, busy=1, version="1.0")
        submit(fleet.ledger, job_over(tmp_path / "a.txt"))
        fleet.ledger.claim("gpu-1/host-7", 1, lease_ttl_s=60)
        assert [(one["id"], one["state"]) for one in listed()] == [("gpu-1", "busy")]
        assert not {"lease_secret", "key", "sha256"} & listed()[0].keys()
