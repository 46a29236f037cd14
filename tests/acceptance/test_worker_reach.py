"""What a worker's key opens: the tasks it holds a lease for, by that lease's token. No more."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from intermission.testing.jobs import line_job, submit
from servers.worker_api import Served, served_in

JOBS = "/api/v1/worker/jobs"
LEDGER = "/api/v1/worker/ledger"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with served_in(tmp_path) as served:
        yield served


@pytest.mark.parametrize(
    "name", ["elsewhere/job.json", "receipts/pack/forged.json", "published/x.json", "source.json"]
)
def test_a_key_writes_no_object_of_a_job(served: Served, name: str) -> None:
    job = submit(served.bench.ledger, line_job())
    store = served.bench.workspace(job).open_store()
    store.create(name, b"before") if name.startswith("published") else None
    _, key = served.register()
    for area in ("store", "outputs"):
        for method in ("PUT", "POST", "DELETE"):
            headers = {"X-Content-SHA256": hashlib.sha256(b"forged").hexdigest()}
            path = f"{JOBS}/{job.key}/{area}/{name}"
            answer = served.call(method, path, key, b"forged", headers=headers)
            assert answer.status_code in (403, 404, 405), (method, area, answer.status_code)
    assert [stat.key for stat in store.list("")] == [name] * name.startswith("published")
    if name.startswith("published"):
        assert store.read(name) == b"before"


def test_a_key_reads_no_object_and_no_source_of_a_job(served: Served) -> None:
    job = submit(served.bench.ledger, line_job())
    served.bench.workspace(job).open_store().create("receipts/fetch/a.json", b"secret")
    _, key = served.register()
    for path in ("store", "store/receipts/fetch/a.json", f"source/{job.source.name}"):
        answer = served.call("GET", f"{JOBS}/{job.key}/{path}", key)
        assert answer.status_code in (403, 404, 422), (path, answer.text)


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("invalidate", {"task_ids": [1], "reason": "because"}),
        ("spoil", {"task_ids": [1], "reason": "because"}),
        ("claim", {"worker": "w", "capacity": 1, "lease_ttl_s": 60}),
        ("complete", {"done": [{"task_id": 1, "fence": 1, "result": "{}"}]}),
        ("release", {"leases": [[1, 1]], "reason": "because"}),
        ("jobs", {}),
        ("tasks", {"job_key": "job"}),
        ("mark", {"job_key": "job", "state": "draining"}),
        ("rescue", {"dead": ["w"]}),
    ],
)
def test_a_key_calls_no_method_of_the_ledger(
    served: Served, method: str, body: dict[str, object]
) -> None:
    submit(served.bench.ledger, line_job())
    _, key = served.register()
    answer = served.call("POST", f"{LEDGER}/{method}", key, json.dumps(body).encode())
    assert answer.status_code in (403, 404), answer.text
