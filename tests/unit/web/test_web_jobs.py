"""Jobs, tasks and events over HTTP, against a ledger that the tests drive by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from web_jobs import Connect, finished, job_over

from intermission.cli import jsonout
from intermission.composition.fleet import Fleet
from intermission.model import Failure, Groups, identity
from intermission.operations.documents import EventDocument, JobDocument, TaskDocument
from intermission.testing.jobs import (
    chunks,
    completion,
    fan_job,
    job,
    line_job,
    mapped,
    plan,
    submit,
)

PIPELINES = Path(__file__).parents[2] / "acceptance" / "pipelines.py"
LETTERS = f"{PIPELINES}:letters"


@pytest.fixture
def client(connect: Connect, tmp_path: Path) -> TestClient:
    return connect(settings={"pipelines": (LETTERS,)}, roots=[tmp_path / "media"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "media" / "a.txt"
    path.parent.mkdir()
    path.write_text("abcdef")
    return path


def post(client: TestClient, key: str | None = None, **body: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post("/api/v1/jobs", json={"pipeline": "letters", **body}, headers=headers)


def pages(client: TestClient, path: str, what: str, **params: Any) -> list[Any]:
    """Every row of a list, turned page by page."""
    rows: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        page = client.get(path, params={**params, **cursor}).json()
        rows += page[what]
        if page["next"] is None:
            return rows
        assert page[what], "a page that has a next one is not empty"
        cursor = {"cursor": page["next"]}


def test_the_same_work_joins_the_job_that_is_there(client: TestClient, source: Path) -> None:
    first = post(client, source=str(source), params={"size": 3}, priority=5)
    assert first.status_code == 202
    made = first.json()
    assert made["params"] == {"mark": "!", "size": 3}
    assert made["priority"] == 5
    assert made["steps"]["pieces"] == {"pending": 1}
    again = post(client, source=str(source), params={"size": 3})
    assert again.status_code == 200
    assert again.json()["job"] == made["job"]
    assert again.headers["location"] == first.headers["location"] == f"/api/v1/jobs/{made['job']}"
    assert client.get(first.headers["location"]).json()["job"] == made["job"]
    assert post(client, source=str(source), params={"size": 2}).status_code == 202


def test_a_repeat_means_the_first_job_even_if_the_source_changed(
    client: TestClient, source: Path
) -> None:
    first = post(client, "k1", source=str(source))
    source.write_text("something else")
    assert post(client, "k1", source=str(source)).json()["job"] == first.json()["job"]
    assert post(client, source=str(source)).json()["job"] != first.json()["job"]
    other = post(client, "k1", source=str(source), priority=1)
    assert other.status_code == 422
    assert "Idempotency-Key" in other.json()["detail"]


def test_a_repeat_whose_job_is_forgotten_makes_a_new_one(
    client: TestClient, fleet: Fleet, source: Path
) -> None:
    first = post(client, "k1", source=str(source)).json()["job"]
    assert fleet.ledger.delete(first)
    source.write_text("something else")
    second = post(client, "k1", source=str(source))
    assert second.status_code == 202
    assert second.json()["job"] != first
    assert post(client, "k1", source=str(source)).json()["job"] == second.json()["job"]


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"pipeline": "nothing"}, 422, "has no pipeline"),
    ({"pipeline": "os:path"}, 422, "has no pipeline"),
    ({"pipeline": "/etc/passwd.py:x"}, 422, "has no pipeline"),
    ({"source": "a.txt"}, 422, "absolute path"),
    ({"source": "/etc/passwd"}, 403, "not below"),
    ({"source": "{media}/../ledger.sqlite"}, 403, "not below"),
    ({"source": "{media}/link/ledger.sqlite"}, 403, "not below"),
    ({"source": "file:///etc/passwd"}, 422, "not the URL of an object"),
    ({"source": "http://169.254.169.254/latest"}, 422, "not the URL of an object"),
    ({"source": "s3://bucket"}, 422, "not the URL of an object"),
    ({"source": "{media}/missing.txt"}, 422, "missing.txt"),
    ({"source": "{media}"}, 422, "media"),
    ({"source": "/\0"}, 422, "no path"),
    ({"source": "upload:a.txt"}, 404, "no upload"),
    ({"source": "upload:../a.txt"}, 422, "cannot be the name"),
    ({"params": {"size": "two"}}, 422, "size"),
    ({"params": {"sise": 2}}, 422, "sise"),
    ({"priority": 10**6}, 422, "priority"),
    ({"surprise": 1}, 422, "surprise"),
]


def test_what_cannot_be_submitted_is_refused_with_a_reason(
    client: TestClient, source: Path
) -> None:
    (source.parent / "link").symlink_to(source.parent.parent)
    for body, status, word in REFUSED:
        given = {"source": str(source), **body}
        given["source"] = given["source"].replace("{media}", str(source.parent))
        answer = client.post("/api/v1/jobs", json={"pipeline": "letters", **given})
        assert answer.status_code == status, (body, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert word in answer.json()["detail"]
        assert answer.json()["remedy"]
    assert client.get("/api/v1/jobs").json()["jobs"] == []


MALFORMED = [
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b'{"pipeline": "letters", "source": "SOURCE", "params": {"mark": NaN}}',
    b'{"pipeline": "letters", "source": "SOURCE", "params": {"mark": "\\ud800"}}',
    b'{"pipeline": "letters", "source": "\\ud800"}',
    b'{"pipeline": "letters", "source": "x", "params": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    b"[" * 100_000,
]


def test_a_malformed_body_is_the_clients_fault(client: TestClient, source: Path) -> None:
    for text in MALFORMED:
        answer = client.post(
            "/api/v1/jobs",
            content=text.replace(b"SOURCE", str(source).encode()),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code in (400, 422), text[:80]
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"]


def test_a_form_is_no_submission(client: TestClient, source: Path) -> None:
    answer = client.post(
        "/api/v1/jobs",
        content=f'{{"pipeline": "letters", "source": "{source}"}}',
        headers={"content-type": "text/plain"},
    )
    assert answer.status_code == 422


def test_jobs_are_listed_newest_first_page_by_page(
    client: TestClient, fleet: Fleet, tmp_path: Path
) -> None:
    made = [job_over(tmp_path / f"{n}.txt", str(n)) for n in range(7)]
    for one in made:
        submit(fleet.ledger, one)
    fleet.ledger.cancel(made[2].key, reason="enough")
    keys = [one.key for one in reversed(made)]
    assert [job["job"] for job in pages(client, "/api/v1/jobs", "jobs", limit=3)] == keys
    assert [job["job"] for job in pages(client, "/api/v1/jobs", "jobs", limit=7)] == keys

    def listed(**params: Any) -> list[str]:
        return [job["job"] for job in pages(client, "/api/v1/jobs", "jobs", limit=2, **params)]

    assert listed(state="cancelled") == [made[2].key]
    assert listed(state=["cancelled", "pending"]) == keys
    assert listed(pipeline="pipeline") == keys
    assert listed(pipeline="other") == []
    assert listed(key=made[4].key[:12]) == [made[4].key]
    assert listed(source=str(tmp_path / "5.txt")) == [made[5].key]


def test_tasks_are_listed_in_order_page_by_page(client: TestClient, fleet: Fleet) -> None:
    made = submit(fleet.ledger, fan_job(key=identity("fan")))
    (lease,) = fleet.ledger.claim("w", 1, lease_ttl_s=60)
    fleet.ledger.complete([completion(fleet.ledger, made, lease, chunks(5))])
    path = f"/api/v1/jobs/{made.key}/tasks"
    rows = pages(client, path, "tasks", limit=2)
    assert [row["id"] for row in rows] == [row.id for row in fleet.ledger.tasks(made.key)]
    assert len(rows) == 7
    assert len(pages(client, path, "tasks", limit=2, step="hear")) == 5
    assert pages(client, path, "tasks", step="nothing") == []
    assert [row["task"] for row in pages(client, path, "tasks", state="blocked")] == ["join"]
    one = client.get(f"{path}/{rows[0]['id']}")
    assert one.json() == rows[0]
    assert client.get(f"{path}/999").status_code == 404
    assert client.get(f"{path}/0").status_code == 422
    assert client.get(f"/api/v1/jobs/{identity('no')}/tasks").status_code == 404


def test_cancelling_and_retrying(client: TestClient, fleet: Fleet, tmp_path: Path) -> None:
    made = submit(fleet.ledger, line_job(key=identity("line")))
    path = f"/api/v1/jobs/{made.key}"
    (lease,) = fleet.ledger.claim("w", 1, lease_ttl_s=60)
    fleet.ledger.fail([Failure(lease.task_id, lease.fence, "E", "no", permanent=True)])
    assert client.get(path).json()["state"] == "failed"
    assert client.post(f"{path}/cancel").status_code == 409
    assert client.post(f"{path}/retry", json={"tasks": [10**9]}).json()["put_back"] == 0
    retried = client.post(f"{path}/retry").json()
    assert retried["put_back"] == 2
    assert retried["job"]["state"] == "running"
    assert client.post(f"{path}/cancel").json()["state"] == "cancelled"
    assert client.post(f"{path}/cancel").status_code == 200
    assert client.post(f"{path}/retry", json={"tasks": []}).status_code == 422
    done = finished(fleet, job_over(tmp_path / "a.txt"), {})
    assert client.post(f"/api/v1/jobs/{done.key}/cancel").status_code == 409
    assert client.post(f"/api/v1/jobs/{identity('no')}/retry").status_code == 404


def test_events_by_cursor(client: TestClient, fleet: Fleet) -> None:
    keys = [identity(str(n)) for n in range(6)]
    for key in keys:
        submit(fleet.ledger, line_job(key=key))
    fleet.ledger.cancel(keys[0], reason="enough")
    everything = [EventDocument.of(event).model_dump() for event in fleet.ledger.events()]

    def follow(path: str, limit: int) -> list[Any]:
        rows: list[Any] = []
        after = 0
        while True:
            page = client.get(path, params={"after": after, "limit": limit}).json()
            rows += page["events"]
            assert page["next"] >= after
            after = page["next"]
            if not page["more"]:
                return rows

    assert follow("/api/v1/events", 3) == everything
    own = [event for event in everything if event["job"] == keys[0]]
    assert len(own) > 2
    assert follow(f"/api/v1/jobs/{keys[0]}/events", 1) == own
    assert follow(f"/api/v1/jobs/{keys[0]}/events", 100) == own
    assert client.get("/api/v1/events", params={"after": 10**6}).json()["next"] == 10**6
    assert client.get(f"/api/v1/jobs/{identity('no')}/events").status_code == 404


def test_a_program_reads_the_server_as_it_reads_the_command(
    client: TestClient, fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = submit(fleet.ledger, job_over(tmp_path / "a.txt"))
    (row,) = fleet.ledger.jobs(made.key)
    (task,) = fleet.ledger.tasks(made.key)
    for document, path in (
        (JobDocument.of(row), f"/api/v1/jobs/{made.key}"),
        (TaskDocument.of(task), f"/api/v1/jobs/{made.key}/tasks/{task.id}"),
    ):
        jsonout.emit(document)
        assert json.loads(capsys.readouterr().out) == {"v": 1, **client.get(path).json()}


def test_groups_are_counted(client: TestClient, fleet: Fleet) -> None:
    grouped = replace(
        job(plan("cut"), mapped("hear", "cut", groups=Groups(by="n"))), key=identity("grouped")
    )
    submit(fleet.ledger, grouped)
    path = f"/api/v1/jobs/{grouped.key}/groups"
    assert client.get(path).json() == {"groups": []}
    (lease,) = fleet.ledger.claim("w", 1, lease_ttl_s=60)
    fleet.ledger.complete([completion(fleet.ledger, grouped, lease, chunks(2))])
    (lease,) = fleet.ledger.claim("w", 1, lease_ttl_s=60)
    fleet.ledger.complete([completion(fleet.ledger, grouped, lease)])
    told = client.get(path).json()["groups"]
    assert [(one["name"], one["state"], one["done"], one["total"]) for one in told] == [
        ("0", "completed", 1, 1),
        ("1", "pending", 0, 1),
    ]
    assert {(one["step"], one["by"], one["unit"]) for one in told} == {("hear", "n", "tasks")}
    assert client.get(f"/api/v1/jobs/{identity('none')}/groups").status_code == 404
