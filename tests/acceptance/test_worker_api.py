"""The worker API as a stranger, a worker and an administrator meet it, on a real server."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from intermission import __version__
from intermission.backends.http.registration import beating, register
from intermission.backends.http.work_client import WorkClient
from intermission.backends.registry.sqlite import SqliteRegistry
from intermission.engine.lease_renewer import MARGIN
from intermission.errors import LedgerError, LedgerRefused
from intermission.model import Failure, Heartbeat, Job
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import line_job, submit
from servers.fault_proxy import LOST_REPLY, FaultProxy, answer
from servers.worker_api import ADMIN, Bench, Served, problem, served_in, serving

TTL_S = 60.0


@pytest.fixture(scope="module")
def module_served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_in(tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture
def served(module_served: Served, tmp_path: Path) -> Served:
    """The server, with a ledger that nobody has used."""
    module_served.bench.use(tmp_path, FakeClock())
    return module_served


ADMIN_ONLY = [
    ("POST", "/api/v1/workers"),
    ("POST", "/api/v1/workers/box-1/rotate"),
    ("DELETE", "/api/v1/workers/box-1"),
]
CALLS = ["claim", "renew", "complete", "fail", "release", "cancelled", "defer", "heartbeat"]
WORKERS_TOO = [
    *[("POST", f"/api/v1/worker/{name}") for name in CALLS],
    *[("GET", f"/api/v1/worker/{name}") for name in ("inputs", "file", "source")],
    ("PUT", "/api/v1/worker/artifacts/a"),
]
LOOK = "/api/v1/worker/cancelled"
NOTHING = {"leases": []}


@pytest.mark.parametrize(("method", "path"), [*ADMIN_ONLY, *WORKERS_TOO])
def test_strangers_are_turned_away(served: Served, method: str, path: str) -> None:
    missing = served.call(method, path)
    problem(missing, 401)
    assert missing.headers["www-authenticate"] == "Bearer"
    problem(served.call(method, path, headers={"Authorization": "Basic abc"}), 401)
    problem(served.call(method, path, "another secret"), 401)
    forged = "imw_12345678_" + "a" * 43
    problem(served.call(method, path, forged), 403 if (method, path) in ADMIN_ONLY else 401)


@pytest.mark.parametrize(("method", "path"), ADMIN_ONLY)
def test_a_worker_is_no_administrator(served: Served, method: str, path: str) -> None:
    _, key = served.register()
    problem(served.call(method, path, key), 403)


def test_without_a_secret_nobody_is_an_administrator(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path / "registry.sqlite")
    with serving(Bench(tmp_path / "fleet", secret=None), registry) as url:
        for given in ("Bearer", "Bearer x", f"Bearer {ADMIN}", ""):
            answer = httpx.post(f"{url}/api/v1/workers", headers={"Authorization": given})
            assert "INTERMISSION_ADMIN_SECRET" in problem(answer, 503)["remedy"]
    registry.close()


def test_a_key_is_shown_once_and_never_kept(served: Served, tmp_path: Path) -> None:
    id, key = served.register()
    secret = key.rsplit("_", 1)[-1] if key.count("_") == 2 else key.split("_", 2)[2]
    assert len(secret) == 43
    kept = b"".join(path.read_bytes() for path in _registry_files(served))
    assert key.split("_")[1].encode() in kept
    assert secret.encode() not in kept
    again = served.call("POST", "/api/v1/workers", ADMIN, {"name": "box", "version": __version__})
    assert again.json()["id"] != id


def test_a_prefix_is_no_key(served: Served) -> None:
    _, key = served.register()
    for forged in (key[:-1] + ("A" if key[-1] != "A" else "B"), key[:13] + "a" * 43, key[:-1]):
        problem(served.call("POST", LOOK, forged, NOTHING), 401)


def test_a_rotated_key_ends_at_once_or_when_it_is_told(served: Served) -> None:
    id, first = served.register()
    rotate = f"/api/v1/workers/{id}/rotate"
    second = served.call("POST", rotate, ADMIN).json()["key"]
    problem(served.call("POST", LOOK, first, NOTHING), 401)
    assert served.call("POST", LOOK, second, NOTHING).status_code == 200
    third = served.call("POST", rotate, ADMIN, {"keep_s": 60}).json()["key"]
    assert served.call("POST", LOOK, second, NOTHING).status_code == 200
    served.bench.clock.advance(61)
    assert "rotate" in problem(served.call("POST", LOOK, second, NOTHING), 401)["remedy"]
    assert served.call("POST", LOOK, third, NOTHING).status_code == 200
    problem(served.call("POST", "/api/v1/workers/nobody/rotate", ADMIN), 404)


def test_a_key_expires(served: Served) -> None:
    _, key = served.register(expires_s=100)
    assert served.call("POST", LOOK, key, NOTHING).status_code == 200
    served.bench.clock.advance(100)
    assert "expired" in problem(served.call("POST", LOOK, key, NOTHING), 401)["title"]


def test_another_minor_version_is_refused_with_the_remedy(served: Served) -> None:
    _, key = served.register()
    old, patch = "0.0.9", f"{'.'.join(__version__.split('.')[:2])}.99"
    for path, body in (
        ("/api/v1/worker/heartbeat", {"version": old, "slots": 1, "busy": 0}),
        ("/api/v1/workers", {"version": old, "name": "box"}),
    ):
        given = ADMIN if path.endswith("workers") else key
        assert "Install" in problem(served.call("POST", path, given, body), 426)["remedy"]
    headers = {"Intermission-Version": old}
    problem(served.call("POST", LOOK, key, NOTHING, headers=headers), 426)
    headers = {"Intermission-Version": patch}
    assert served.call("POST", LOOK, key, NOTHING, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"metadata": {"a": "x" * 10_240}}, 413),
        ({"can": ["x" * 100] * 100}, 413),
        ({"metadata": {"a": "x" * 70_000}}, 413),
        ({"metadata": {"a": "x" * 10_000}}, 201),
        ({"metadata": ["no mapping"]}, 422),
        ({"name": "../box"}, 422),
        ({"name": ""}, 422),
        ({"can": "gpu"}, 422),
        ({"expires_s": -1}, 422),
        ({"admin": True}, 422),
    ],
)
def test_a_registration_is_checked(served: Served, fields: dict[str, Any], status: int) -> None:
    asked = {"name": "box", "version": __version__} | fields
    answer = served.call("POST", "/api/v1/workers", ADMIN, asked)
    assert answer.status_code == status, answer.text


def test_heartbeats_are_kept_and_come_by_themselves(served: Served) -> None:
    id, key = register(served.url, ADMIN, "box", can=["gpu"], metadata={"cores": 2})
    (row,) = [row for row in served.registry.workers() if row.id == id]
    assert (row.can, row.metadata, row.heard_ms) == (("gpu",), {"cores": 2}, None)
    asked: list[int] = []

    def load() -> tuple[int, int]:
        asked.append(1)
        return 4, 3

    with beating(served.url, key, load, every_s=0.01):
        _until(lambda: len(asked) > 2)
    (row,) = [row for row in served.registry.workers() if row.id == id]
    assert (row.slots, row.busy, row.version) == (4, 3, __version__)
    assert row.heard_ms == served.bench.clock.now_ms()
    problem(
        served.call(
            "POST",
            "/api/v1/worker/heartbeat",
            ADMIN,
            {"version": __version__, "slots": 1, "busy": 0},
        ),
        403,
    )


CLAIM = {"process": "w", "room": 1}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 60_000,
        json.dumps(CLAIM | {"fence": 1}).encode(),
        json.dumps(CLAIM | {"room": "1"}).encode(),
        json.dumps(CLAIM | {"room": 1.5}).encode(),
        json.dumps(CLAIM | {"room": True}).encode(),
        json.dumps(CLAIM | {"room": 0}).encode(),
        json.dumps(CLAIM | {"room": 10**30}).encode(),
        json.dumps(CLAIM | {"room": 10**5}).encode(),
        json.dumps(CLAIM | {"lease_s": 0}).encode(),
        json.dumps(CLAIM | {"process": "a\nb"}).encode(),
        json.dumps(CLAIM | {"process": "w" * 201}).encode(),
        b'{"process": "w", "room": 1, "lease_s": NaN}',
        b'{"process": "w", "room": 1, "lease_s": 1e999}',
    ],
)
def test_a_malformed_call_is_refused_and_does_nothing(served: Served, body: bytes) -> None:
    made = submit(served.bench.ledger, line_job())
    _, key = served.register()
    problem(served.call("POST", "/api/v1/worker/claim", key, body), 422)
    assert _states(served, made) == {"fetch": "pending", "pack": "blocked"}


def test_a_large_call_needs_a_key_before_it_is_read(served: Served) -> None:
    _, key = served.register()
    release = "/api/v1/worker/release"
    body = {"leases": ["x" * 200] * 1000, "reason": "drained"}
    large = json.dumps(body).encode()
    assert len(large) > 64 * 1024
    problem(served.call("POST", release, None, large), 401)
    assert served.call("POST", release, key, large).json() == {"released": 0}

    def pieces() -> Iterator[bytes]:  # of a body that does not say how long it is
        yield from [large[:30_000]] * 4

    headers = {"Authorization": f"Bearer {key}"}
    problem(httpx.post(f"{served.url}{release}", content=pieces(), headers=headers), 413)
    headers["Content-Length"] = str(10**12)
    assert _status_by_headers(served, release, headers) == 413


def test_the_ledger_knows_a_worker_by_its_key_alone(served: Served) -> None:
    made = submit(served.bench.ledger, line_job())
    id, key = served.register()
    assert len(served.hands(key).claim()) == 1
    assert [row.worker for row in served.bench.ledger.tasks(made.key)] == [f"{id}/hands", None]


def test_one_call_may_be_about_leases_of_several(served: Served) -> None:
    for n in range(3):
        submit(served.bench.ledger, line_job(key=f"job{n}"))
    hands, other = served.hands(), served.hands()
    mine = hands.claim(2)
    (foreign,) = other.claim()
    done = [{"lease": one["token"], "result": "1"} for one in (mine[0], foreign, mine[1])]
    ends = hands.said("complete", done=done)["ends"]
    assert [end["accepted"] for end in ends] == [True, False, True]
    failed = [
        {"lease": one["token"], "error": "Broken", "message": "no"} for one in (*mine, foreign)
    ]
    assert other.said("fail", failed=failed) == {"states": [None, None, "retrying"]}


def test_a_repeated_call_is_answered_as_the_first(served: Served) -> None:
    made = submit(served.bench.ledger, line_job())
    _, key = served.register()
    headers = {"Idempotency-Key": uuid4().hex}
    first = served.call("POST", "/api/v1/worker/claim", key, CLAIM, headers=headers)
    again = served.call("POST", "/api/v1/worker/claim", key, CLAIM, headers=headers)
    assert first.json()["leases"]
    assert again.content == first.content
    _, other = served.register()
    stranger = served.call("POST", "/api/v1/worker/claim", other, CLAIM, headers=headers)
    assert stranger.json()["leases"] == []
    assert _states(served, made)["fetch"] in ("leased", "running")


def test_calls_whose_answers_are_lost_take_effect_once(served: Served) -> None:
    made = submit(served.bench.ledger, line_job())
    _, key = served.register()
    with FaultProxy(served.url.removeprefix("http://")).running() as proxy:
        client = WorkClient(proxy.url, key)
        for fault in (LOST_REPLY, answer(503), answer(502)):
            proxy.arm(fault)
            leases = client.claim("w", 1, lease_ttl_s=TTL_S)
            assert [lease.attempt for lease in leases] == [1]
            proxy.arm(fault)
            held = leases[0].task_id, leases[0].fence
            assert client.fail([Failure(*held, "Broken", "no")]) == ["retrying"]
            served.bench.ledger.retry(made.key)
            served.bench.ledger.delete(made.key)
            submit(served.bench.ledger, made)


def test_a_refusal_is_not_asked_again_and_silence_not_for_ever(served: Served) -> None:
    _, key = served.register()
    with FaultProxy(served.url.removeprefix("http://")).running() as proxy:
        refused = WorkClient(proxy.url, "imw_12345678_" + "a" * 43)
        with pytest.raises(LedgerRefused, match="no worker has it"):
            refused.claim("w", 1, lease_ttl_s=TTL_S)
        assert len(proxy.requests) == 1
        proxy.arm(answer(503), times=1000)
        client = WorkClient(proxy.url, key, patience_s=0.5)
        with pytest.raises(LedgerError, match=r"no usable answer for 0\.5 s") as caught:
            client.claim("w", 1, lease_ttl_s=TTL_S)
        assert caught.value.remedy
        assert len(proxy.requests) > 2
    with pytest.raises(LedgerError, match="no usable answer"):
        WorkClient(proxy.url, key, patience_s=0.2).claim("w", 1, lease_ttl_s=TTL_S)


def test_a_renewal_that_a_server_leaves_unanswered_fails_long_before_its_lease_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the work can still be ended in time."""
    asked: list[tuple[float, float]] = []
    client = WorkClient("http://127.0.0.1:9", "key")

    def call(*_: Any, patience_s: float, timeout_s: float, **__: Any) -> Any:
        asked.append((patience_s, timeout_s))
        raise LedgerError("no usable answer.")

    monkeypatch.setattr(client._server, "call", call)
    for lease_ttl_s in (60.0, 600.0):
        with pytest.raises(LedgerError):
            client.renew("w1", [Heartbeat(1, 1)], lease_ttl_s=lease_ttl_s)
        patience_s, timeout_s = asked[-1]
        assert patience_s + timeout_s <= lease_ttl_s * MARGIN


def test_the_digest_of_a_key_is_all_that_is_kept(served: Served) -> None:
    _, key = served.register()
    found = served.registry.find(key.split("_")[1])
    assert found is not None
    assert found[1].sha256 == hashlib.sha256(key.encode()).hexdigest()


def _states(served: Served, made: Job) -> dict[str, str]:
    return {row.name: row.state.value for row in served.bench.ledger.tasks(made.key)}


def _registry_files(served: Served) -> list[Path]:
    path = served.registry._path
    return [found for found in path.parent.glob(f"{path.name}*") if found.is_file()]


def _status_by_headers(served: Served, path: str, headers: dict[str, str]) -> int:
    """The status of the answer to a request whose body never comes."""
    connection = HTTPConnection(served.url.removeprefix("http://"), timeout=20)
    try:
        connection.putrequest("POST", path)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


def _until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until_s
        threading.Event().wait(0.01)
