"""The worker API as a stranger, a worker and an administrator meet it, on a real server."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from intermission import __version__
from intermission.backends.http.ledger import HttpLedger
from intermission.backends.http.registration import beating, register
from intermission.backends.registry.sqlite import SqliteRegistry
from intermission.errors import LedgerError, LedgerRefused
from intermission.model import Completion, Failure, Heartbeat, Job, JobState, Lease, TaskState
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import completion, line_job, submit
from servers.fault_proxy import LOST_REPLY, FaultProxy, answer
from servers.worker_api import ADMIN, Bench, Served, problem, served_in, serving

TTL_S = 60.0
LEDGER = "/api/v1/worker/ledger"


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
ADMIN_CALLS = ["submit", "retry", "cancel", "delete", "deferred", "events", "workers", "limit"]
WORKER_CALLS = [
    "claim",
    "renew",
    "complete",
    "fail",
    "release",
    "defer",
    "rescue",
    "jobs",
    "invalidate",
]
WORKERS_TOO = [
    *[("POST", f"{LEDGER}/{name}") for name in WORKER_CALLS],
    ("POST", "/api/v1/worker/heartbeat"),
    ("GET", "/api/v1/worker/jobs/job/store"),
    ("POST", "/api/v1/worker/jobs/job/store"),
    ("GET", "/api/v1/worker/jobs/job/store/a"),
    ("PUT", "/api/v1/worker/jobs/job/outputs/a"),
    ("DELETE", "/api/v1/worker/jobs/job/store/a"),
    ("GET", "/api/v1/worker/jobs/job/source/a"),
]


@pytest.mark.parametrize(("method", "path"), [*ADMIN_ONLY, *WORKERS_TOO])
def test_strangers_are_turned_away(served: Served, method: str, path: str) -> None:
    missing = served.call(method, path)
    problem(missing, 401)
    assert missing.headers["www-authenticate"] == "Bearer"
    problem(served.call(method, path, headers={"Authorization": "Basic abc"}), 401)
    problem(served.call(method, path, "another secret"), 403)
    forged = "imw_12345678_" + "a" * 43
    problem(served.call(method, path, forged), 401 if (method, path) in WORKERS_TOO else 403)


@pytest.mark.parametrize(
    ("method", "path"), [*ADMIN_ONLY, *[("POST", f"{LEDGER}/{name}") for name in ADMIN_CALLS]]
)
def test_a_worker_is_no_administrator(served: Served, method: str, path: str) -> None:
    _, key = served.register()
    problem(served.call(method, path, key), 403)


def test_without_a_secret_nobody_is_an_administrator(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path / "registry.sqlite")
    with serving(Bench(tmp_path / "fleet", secret=None), registry) as url:
        for given in ("Bearer", "Bearer x", f"Bearer {ADMIN}", ""):
            answer = httpx.post(f"{url}/api/v1/workers", headers={"Authorization": given})
            assert "INTERMISSION_ADMIN_SECRET" in problem(answer, 503)["remedy"]
        # What the public API of such a server offers to everybody, and no more.
        with closing(HttpLedger(url, "", patience_s=0)) as anybody:
            submit(Bench(tmp_path / "fleet").ledger, made := line_job())
            assert [row.job for row in anybody.jobs()] == [made]
            assert anybody.cancel(made.key, reason="no")
            for act in (
                lambda: anybody.submit(made, []),
                lambda: anybody.claim("w", 1, lease_ttl_s=TTL_S),
                lambda: anybody.delete(made.key),
                lambda: anybody.mark(made.key, JobState.RUNNING),
            ):
                with pytest.raises(LedgerRefused, match="no key"):
                    act()
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
        problem(served.call("POST", f"{LEDGER}/jobs", forged), 401)


def test_a_revoked_key_fails_at_the_next_call(served: Served) -> None:
    id, key = served.register()
    submit(served.bench.ledger, line_job())
    ledger = HttpLedger(served.url, key)
    (lease,) = ledger.claim("w", 1, lease_ttl_s=TTL_S)
    assert served.call("DELETE", f"/api/v1/workers/{id}", ADMIN).status_code == 204
    assert served.call("DELETE", f"/api/v1/workers/{id}", ADMIN).status_code == 204
    for act in (
        lambda: ledger.claim("w", 1, lease_ttl_s=TTL_S),
        lambda: ledger.complete([Completion(lease.task_id, lease.fence, "{}")]),
        lambda: ledger.renew("w", [Heartbeat(lease.task_id, lease.fence)], lease_ttl_s=TTL_S),
    ):
        with pytest.raises(LedgerRefused, match="revoked") as caught:
            act()
        assert "Register" in caught.value.remedy
    problem(served.call("DELETE", "/api/v1/workers/nobody", ADMIN), 404)


def test_a_rotated_key_ends_at_once_or_when_it_is_told(served: Served) -> None:
    id, first = served.register()
    rotate = f"/api/v1/workers/{id}/rotate"
    second = served.call("POST", rotate, ADMIN).json()["key"]
    problem(served.call("POST", f"{LEDGER}/jobs", first), 401)
    assert served.call("POST", f"{LEDGER}/jobs", second).status_code == 200
    third = served.call("POST", rotate, ADMIN, {"keep_s": 60}).json()["key"]
    assert served.call("POST", f"{LEDGER}/jobs", second).status_code == 200
    served.bench.clock.advance(61)
    assert "rotate" in problem(served.call("POST", f"{LEDGER}/jobs", second), 401)["remedy"]
    assert served.call("POST", f"{LEDGER}/jobs", third).status_code == 200
    problem(served.call("POST", "/api/v1/workers/nobody/rotate", ADMIN), 404)


def test_a_key_expires(served: Served) -> None:
    _, key = served.register(expires_s=100)
    assert served.call("POST", f"{LEDGER}/jobs", key).status_code == 200
    served.bench.clock.advance(100)
    assert "expired" in problem(served.call("POST", f"{LEDGER}/jobs", key), 401)["title"]


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
    problem(served.call("POST", f"{LEDGER}/jobs", key, headers=headers), 426)
    headers = {"Intermission-Version": patch}
    assert served.call("POST", f"{LEDGER}/jobs", key, headers=headers).status_code == 200


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


CLAIM = {"worker": "w", "capacity": 1, "lease_ttl_s": 60}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 60_000,
        json.dumps(CLAIM | {"fence": 1}).encode(),
        json.dumps(CLAIM | {"capacity": "1"}).encode(),
        json.dumps(CLAIM | {"capacity": 1.5}).encode(),
        json.dumps(CLAIM | {"capacity": True}).encode(),
        json.dumps(CLAIM | {"capacity": -1}).encode(),
        json.dumps(CLAIM | {"capacity": 10**30}).encode(),
        json.dumps(CLAIM | {"capacity": 10**5}).encode(),
        json.dumps(CLAIM | {"lease_ttl_s": None}).encode(),
        json.dumps(CLAIM | {"worker": "a\nb"}).encode(),
        json.dumps(CLAIM | {"worker": "w" * 201}).encode(),
        b'{"worker": "w", "capacity": 1, "lease_ttl_s": NaN}',
        b'{"worker": "w", "capacity": 1, "lease_ttl_s": 1e999}',
    ],
)
def test_a_malformed_call_is_refused_and_does_nothing(served: Served, body: bytes) -> None:
    made = submit(served.bench.ledger, line_job())
    _, key = served.register()
    problem(served.call("POST", f"{LEDGER}/claim", key, body), 422)
    assert _states(served, made) == {"fetch": "pending", "pack": "blocked"}


def test_a_malformed_completion_is_refused_whole(served: Served) -> None:
    made = submit(served.bench.ledger, line_job())
    _, key = served.register()
    (lease,) = HttpLedger(served.url, key).claim("w", 1, lease_ttl_s=TTL_S)
    good = {"task_id": lease.task_id, "fence": lease.fence, "result": "{}"}
    for wrong in (
        {"tasks": [{"step": "fetch", "index": 0, "key": "k", "more": 1}]},
        {"tasks": [{"step": "fetch", "index": 2**63, "key": "k"}]},
        {"fence": 2**64},
        {"receipt": {"task_key": "k"}},
        {"key": 7},
    ):
        body = {"done": [good | wrong]}
        problem(served.call("POST", f"{LEDGER}/complete", key, body), 422)
    assert _states(served, made) == {"fetch": "leased", "pack": "blocked"}


def test_a_large_call_needs_a_key_before_it_is_read(served: Served) -> None:
    _, key = served.register()
    large = json.dumps({"leases": [[1, 1]] * 20_000, "reason": "x"}).encode()
    assert len(large) > 64 * 1024
    problem(served.call("POST", f"{LEDGER}/release", None, large), 401)
    assert served.call("POST", f"{LEDGER}/release", key, large).json() == {"answer": 0}

    def pieces() -> Iterator[bytes]:  # of a body that does not say how long it is
        yield from [large[:30_000]] * 4

    headers = {"Authorization": f"Bearer {key}"}
    problem(httpx.post(f"{served.url}{LEDGER}/release", content=pieces(), headers=headers), 413)
    headers["Content-Length"] = str(10**12)
    assert _status_by_headers(served, f"{LEDGER}/release", headers) == 413


def test_the_ledger_knows_a_worker_by_its_key_alone(served: Served) -> None:
    made = submit(served.bench.ledger, line_job())
    id, key = served.register()
    (lease,) = HttpLedger(served.url, key).claim("mine", 1, lease_ttl_s=TTL_S)
    assert [row.worker for row in served.bench.ledger.tasks(made.key)] == [f"{id}/mine", None]
    other = served.worker()
    assert other.rescue([f"{id}/mine", "mine"]) == 0
    assert served.bench.ledger.workers() == [f"{id}/mine"]
    assert HttpLedger(served.url, key).rescue(["mine"]) == 1
    assert lease.fence == 1


def test_a_lease_is_the_workers_that_claimed_it(served: Served) -> None:
    made = submit(served.bench.ledger, line_job())
    ledger, thief = served.worker(), served.worker()
    (lease,) = ledger.claim("w", 1, lease_ttl_s=TTL_S)
    for seals in ((), ledger._seals.of([_held(lease)])):
        thief._seals.keep([_held(lease)] * len(seals), seals)
        _assert_refused(thief, made, lease)
    assert _states(served, made)["fetch"] == "leased"
    assert ledger.renew("w", [Heartbeat(*_held(lease), 0.5)], lease_ttl_s=TTL_S).lost == frozenset()
    for _ in range(2):
        assert ledger.complete([completion(ledger, made, lease)]) == [True]
    assert thief.complete([completion(thief, made, lease)]) == [False]
    assert _states(served, made)["fetch"] == "done"


def test_one_call_may_be_about_leases_of_several(served: Served) -> None:
    jobs = [submit(served.bench.ledger, line_job(key=f"job{n}")) for n in range(3)]
    ledger, other = served.worker(), served.worker()
    mine = [ledger.claim("w", 1, lease_ttl_s=TTL_S)[0]]
    foreign = other.claim("w", 1, lease_ttl_s=TTL_S)[0]
    mine += ledger.claim("w", 1, lease_ttl_s=TTL_S)
    leases = [mine[0], foreign, mine[1]]
    made = {job.key: job for job in jobs}
    done = [completion(ledger, made[lease.job_key], lease) for lease in leases]
    assert ledger.complete(done) == [True, False, True]
    failures = [Failure(*_held(lease), "Broken", "it broke") for lease in leases]
    assert other.fail(failures) == [None, TaskState.RETRYING, None]


def test_a_stopped_worker_is_fenced_everywhere(served: Served) -> None:
    clock = FakeClock()
    served.bench.use(served.bench.folder / "fenced", clock)
    made = submit(served.bench.ledger, line_job())
    stopped, heir = served.worker(), served.worker()
    (old,) = stopped.claim("w", 1, lease_ttl_s=TTL_S)
    clock.advance(TTL_S)
    assert heir.rescue() == 1
    (new,) = heir.claim("w", 1, lease_ttl_s=TTL_S)
    assert (new.task_id, new.fence) == (old.task_id, old.fence + 1)
    _assert_refused(stopped, made, old)
    _assert_refused(stopped, made, new)
    assert heir.complete([completion(heir, made, new)]) == [True]


def test_leases_outlive_the_server(tmp_path: Path) -> None:
    with served_in(tmp_path) as first:
        made = submit(first.bench.ledger, line_job())
        ledger = first.worker()
        (lease,) = ledger.claim("w", 1, lease_ttl_s=TTL_S)
        # After a restart a server has nothing in memory.
        with serving(first.bench, first.registry) as other_url:
            moved = HttpLedger(other_url, ledger._opened[1])
            moved._seals.keep([_held(lease)], ledger._seals.of([_held(lease)]))
            assert moved.complete([completion(moved, made, lease)]) == [True]


def test_a_repeated_call_is_answered_as_the_first(served: Served) -> None:
    made = submit(served.bench.ledger, line_job())
    _, key = served.register()
    headers = {"Idempotency-Key": uuid4().hex}
    first = served.call("POST", f"{LEDGER}/claim", key, CLAIM, headers=headers)
    again = served.call("POST", f"{LEDGER}/claim", key, CLAIM, headers=headers)
    assert first.json()["answer"]["leases"]
    assert again.content == first.content
    _, other = served.register()
    stranger = served.call("POST", f"{LEDGER}/claim", other, CLAIM, headers=headers)
    assert stranger.json()["answer"]["leases"] == []
    assert _states(served, made)["fetch"] == "leased"


def test_calls_whose_answers_are_lost_take_effect_once(served: Served) -> None:
    made = submit(served.bench.ledger, line_job())
    _, key = served.register()
    with FaultProxy(served.url.removeprefix("http://")).running() as proxy:
        ledger = HttpLedger(proxy.url, key)
        for fault in (LOST_REPLY, answer(503), answer(502)):
            proxy.arm(fault)
            leases = ledger.claim("w", 1, lease_ttl_s=TTL_S)
            assert [lease.attempt for lease in leases] == [1]
            proxy.arm(fault)
            assert ledger.fail([Failure(*_held(leases[0]), "Broken", "no")]) == ["retrying"]
            served.bench.ledger.retry(made.key)
            served.bench.ledger.delete(made.key)
            submit(served.bench.ledger, made)


def test_a_refusal_is_not_asked_again_and_silence_not_for_ever(served: Served) -> None:
    with FaultProxy(served.url.removeprefix("http://")).running() as proxy:
        refused = HttpLedger(proxy.url, "imw_12345678_" + "a" * 43)
        with pytest.raises(LedgerRefused, match="no worker has it"):
            refused.jobs()
        assert len(proxy.requests) == 1
        proxy.arm(answer(503), times=1000)
        ledger = HttpLedger(proxy.url, ADMIN, patience_s=0.5)
        with pytest.raises(LedgerError, match=r"no usable answer for 0\.5 s") as caught:
            ledger.jobs()
        assert caught.value.remedy
        assert len(proxy.requests) > 2
    with pytest.raises(LedgerError, match="no usable answer"):
        HttpLedger(proxy.url, ADMIN, patience_s=0.2).jobs()


def test_a_worker_says_only_that_it_leaves(served: Served) -> None:
    made = submit(served.bench.ledger, line_job())
    ledger = served.worker()
    with pytest.raises(LedgerRefused):
        ledger.mark(made.key, JobState.DONE)
    assert ledger.mark(made.key, JobState.DRAINING, reason="the machine ends")
    assert [row.state for row in ledger.jobs(made.key)] == [JobState.DRAINING]


def test_text_that_no_json_can_hold_is_a_ledger_error(served: Served) -> None:
    with pytest.raises(LedgerError, match="not UTF-8"):
        served.worker().fail([Failure(1, 1, "Broken", "no file \udcff.mp4")])


def test_an_unknown_step_is_not_found(served: Served) -> None:
    submit(served.bench.ledger, line_job())
    _, key = served.register()
    for name in ("outputs", "tasks"):
        body = {"job_key": "job", "step": "nothing"}
        problem(served.call("POST", f"{LEDGER}/{name}", key, body), 404)
    assert served.call("POST", f"{LEDGER}/nothing", key).status_code == 404


def test_the_digest_of_a_key_is_all_that_is_kept(served: Served) -> None:
    _, key = served.register()
    found = served.registry.find(key.split("_")[1])
    assert found is not None
    assert found[1].sha256 == hashlib.sha256(key.encode()).hexdigest()


def _assert_refused(ledger: HttpLedger, made: Job, lease: Lease) -> None:
    """Every call about a lease is answered as if its fence were gone."""
    held = _held(lease)
    assert ledger.complete([completion(ledger, made, lease)]) == [False]
    assert ledger.fail([Failure(*held, "Broken", "it broke")]) == [None]
    assert ledger.renew("w", [Heartbeat(*held)], lease_ttl_s=TTL_S).lost == {lease.task_id}
    assert ledger.release([held], reason="no reason") == 0
    assert ledger.defer(*held, token="token", timeout_s=60) is False


def _held(lease: Lease) -> tuple[int, int]:
    return lease.task_id, lease.fence


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
