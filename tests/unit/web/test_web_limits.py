"""Limits, pauses and grouped failures over HTTP: what the commands do, for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from web_jobs import Connect, job_over

from intermission.composition.fleet import Fleet
from intermission.model import Failure, Job, Limit, TaskState
from intermission.testing.jobs import submit

LIMITS = "/api/v1/limits"


@pytest.fixture
def client(connect: Connect) -> TestClient:
    return connect()


@pytest.fixture
def made(fleet: Fleet, tmp_path: Path) -> Job:
    return submit(fleet.ledger, job_over(tmp_path / "a.txt"))


def claimable(fleet: Fleet) -> int:
    return len(fleet.ledger.claim("w", 10, lease_ttl_s=60))


def test_a_limit_is_set_changed_and_removed(client: TestClient, fleet: Fleet) -> None:
    shown = {"name": "pipeline:x", "running": 2, "per_minute": None, "paused": False}
    answer = client.put(f"{LIMITS}/pipeline:x", json={"running": 2})
    assert (answer.status_code, answer.json()) == (200, shown)
    assert client.get(LIMITS).json() == {"limits": [shown]}
    client.put(f"{LIMITS}/pipeline:x", json={"per_minute": 1.5})
    assert fleet.ledger.limits() == [Limit("pipeline:x", None, 1.5)]
    for _ in range(2):
        assert client.delete(f"{LIMITS}/pipeline:x").status_code == 204
    assert client.get(LIMITS).json() == {"limits": []}


def test_what_is_paused_stays_so_until_it_is_resumed(
    client: TestClient, fleet: Fleet, made: Job
) -> None:
    name = f"job:{made.key}"
    assert client.post(f"{LIMITS}/{name}/pause").json()["paused"] is True
    client.put(f"{LIMITS}/{name}", json={"running": 1})
    assert fleet.ledger.limits() == [Limit(name, 1, None, paused=True)]
    assert claimable(fleet) == 0
    assert client.post(f"{LIMITS}/{name}/resume").json()["running"] == 1
    assert claimable(fleet) == 1
    client.delete(f"{LIMITS}/{name}")
    assert client.post(f"{LIMITS}/{name}/resume").status_code == 200
    assert fleet.ledger.limits() == [], "what bounds nothing is not kept"


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("pipeline:x", {}, 422),
        ("pipeline:x", {"running": 0}, 422),
        ("pipeline:x", {"running": 1.5}, 422),
        ("pipeline:x", {"running": 10**30}, 422),
        ("pipeline:x", {"per_minute": 0}, 422),
        ("pipeline:x", {"per_minute": "many"}, 422),
        ("pipeline:x", {"running": 1, "paused": True}, 422),
        ("pipeline:x", [], 422),
        ("pipeline:", {"running": 1}, 422),
        ("pipeline:a%00b", {"running": 1}, 422),
        ("pipeline:a%5cb", {"running": 1}, 422),
        ("pipeline:..%2fx", {"running": 1}, 404),
        ("everything", {"running": 1}, 422),
        ("job:short", {"running": 1}, 422),
        ("job:" + "0" * 40, {"running": 1}, 404),
    ],
)
def test_what_is_no_limit_is_refused(
    client: TestClient, fleet: Fleet, name: str, body: Any, status: int
) -> None:
    answer = client.put(f"{LIMITS}/{name}", json=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert fleet.ledger.limits() == []


def test_a_body_of_any_method_has_a_limit(client: TestClient) -> None:
    answer = client.put(f"{LIMITS}/pipeline:x", content=bytes(2**20 + 1))
    assert answer.status_code == 413
    assert answer.json()["remedy"]


def failed(fleet: Fleet, made: Job, error: str) -> Job:
    submit(fleet.ledger, made)
    (lease,) = fleet.ledger.claim("w", 1, lease_ttl_s=60, jobs=[made.key])
    fleet.ledger.fail([Failure(lease.task_id, lease.fence, error, f"it was {error}", True)])
    return made


def test_failures_are_grouped_and_retried_together(
    client: TestClient, fleet: Fleet, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    slow = [failed(fleet, job_over(path, f"s{n}"), "TimedOut") for n in range(3)]
    other = failed(fleet, job_over(path, "o", pipeline="other"), "TimedOut")
    broken = failed(fleet, job_over(path, "b"), "SourceError")

    def groups(**which: str) -> list[tuple[str, str, int]]:
        found = client.get("/api/v1/failures", params=which).json()["failures"]
        return [(one["pipeline"], one["error"], one["count"]) for one in found]

    most = ("pipeline", "TimedOut", 3)
    assert groups()[0] == most
    assert set(groups()) == {most, ("other", "TimedOut", 1), ("pipeline", "SourceError", 1)}
    assert groups(pipeline="pipeline", error="TimedOut") == [most]
    assert groups(step="nothing") == []
    (group,) = client.get("/api/v1/failures", params={"pipeline": "other"}).json()["failures"]
    assert (group["jobs"], group["step"]) == ([other.key], "pack")
    assert (group["message"], group["last"][-1]) == ("it was TimedOut", "Z")

    which = {"pipeline": "pipeline", "error": "TimedOut"}
    assert client.post("/api/v1/failures/retry", json=which).json() == {"put_back": 3}
    for made in slow:
        assert [task.state for task in fleet.ledger.tasks(made.key)] == [TaskState.PENDING]
    (left,) = fleet.ledger.tasks(broken.key)
    assert left.state is TaskState.FAILED
    assert client.post("/api/v1/failures/retry", json={"pipelin": "x"}).status_code == 422
    assert client.post("/api/v1/failures/retry").json() == {"put_back": 2}
    assert groups() == []
