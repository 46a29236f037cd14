"""Ends that remote workers report: what a failure costs in time, and what a server never takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from intermission import Chunk, Context, File, Pipeline, Source, step
from intermission.backends.http.claimed_job import HttpJob, open_http_job
from intermission.backends.http.work_client import WorkClient
from intermission.backends.source_files import identify
from intermission.backends.store.memory import MemoryStore
from intermission.engine.inputs import input_digests
from intermission.engine.planning import expand, make_job
from intermission.engine.receipt import peek
from intermission.errors import ChangeRefused
from intermission.model import Job, Lease, TaskState
from intermission.pipeline.catalog import Catalog
from intermission.ports.ledger import every_task
from intermission.ports.slot_protocol import Completed, Failed
from intermission.settings import Settings
from servers.fault_proxy import FaultProxy, answer
from servers.worker_api import Served, served_in


class Piece(Chunk):
    n: int


@step(version=1)
def cut(source: Source) -> list[Piece]: ...


@step(version=1, durable=False)
def measure(piece: Piece) -> str: ...


@step(version=1)
def join(ctx: Context, cut: list[Piece], measure: list[str]) -> File: ...


pipeline = Pipeline("ending", [cut, measure, join])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with served_in(tmp_path / "server") as served:
        served.bench.pipelines["ending"] = pipeline
        yield served


@pytest.fixture
def job(served: Served, tmp_path: Path) -> Job:
    path = tmp_path / "a.bin"
    path.write_bytes(b"abc")
    job = make_job(pipeline, identify(path, MemoryStore()), {})
    served.bench.ledger.submit(job, expand(job, {}))
    return job


def opened(client: WorkClient, tmp_path: Path, job: Job) -> HttpJob:
    catalog = Catalog((f"{__file__}:pipeline",))
    return open_http_job(client, catalog, "w", Settings(), tmp_path / "cache", job.key)


def done(lease: Lease, result: str) -> tuple[Lease, Completed]:
    return lease, Completed(lease.task_id, result, took_s=0.1)


def states(served: Served, job: Job, name: str) -> list[TaskState]:
    return [row.state for row in every_task(served.bench.ledger, job.key, step=name)]


def test_a_failure_waits_as_long_as_on_a_fleet(
    served: Served, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60, 300, 900 s, each up to a fifth longer or shorter."""
    told: list[float] = []
    fail = type(served.bench.ledger).fail

    def listen(ledger: Any, failures: Any) -> Any:
        told.extend(one.delay_s for one in failures)
        return fail(ledger, failures)

    monkeypatch.setattr(type(served.bench.ledger), "fail", listen)
    client = WorkClient(served.url, served.register()[1])
    (mine,) = client.claim("w", 1, lease_ttl_s=60)
    failed = Failed(mine.task_id, "Broken", "no", False)
    state = opened(client, served.bench.folder, job).fail(mine, failed)
    assert state is TaskState.RETRYING
    assert len(told) == 1
    assert 60 * 0.8 <= told[0] <= 60 * 1.2


def test_a_receipt_says_what_its_task_was_made_from(served: Served, job: Job) -> None:
    hands = served.hands()
    (lease,) = hands.claim()
    hands.complete(lease["token"], [{"n": 1}])
    (lease,) = hands.claim()
    hands.complete(lease["token"], '"9"')
    client = WorkClient(served.url, hands.key)
    (last,) = client.claim("w", 1, lease_ttl_s=60)
    hands.complete(last.token, '"all"', hands.add(last.token, "all", b"all"))
    receipt = peek(served.bench.workspace(job).open_store(), "join", last.key)
    assert receipt is not None
    assert set(receipt.inputs) == {"cut"}, "as those that are written in place: steps with receipts"
    inputs = client.inputs(last, job.step("join").edges)
    assert receipt.inputs == input_digests(job, "join", inputs)


def three(served: Served, url: str) -> tuple[WorkClient, list[Lease]]:
    hands = served.hands()
    (lease,) = hands.claim()
    hands.complete(lease["token"], [{"n": n} for n in range(3)])
    client = WorkClient(url, hands.key, patience_s=1)
    return client, client.claim("w", 3, lease_ttl_s=60)


@pytest.mark.parametrize(
    "result",
    ['"' + "x" * 2 * 1024**2 + '"', '"\udcff"'],
    ids=["too large", "not UTF-8"],
)
def test_an_end_that_no_server_takes_fails_alone(
    served: Served, job: Job, tmp_path: Path, result: str
) -> None:
    client, leases = three(served, served.url)
    ends = [done(leases[0], '"a"'), done(leases[1], result), done(leases[2], '"c"')]
    opened(client, tmp_path, job).complete(ends)
    expected = [TaskState.DONE, TaskState.FAILED, TaskState.DONE]
    assert states(served, job, "measure") == expected


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refusal_of_the_server_is_no_outage(
    served: Served, job: Job, tmp_path: Path, status: int
) -> None:
    """What it never takes is told from what it cannot take now."""
    with FaultProxy(served.url.removeprefix("http://")).running() as proxy:
        client, leases = three(served, proxy.url)
        proxy.arm(answer(status))
        failed = Failed(leases[0].task_id, "Broken", "no", False)
        with pytest.raises(ChangeRefused):
            opened(client, tmp_path, job).fail(leases[0], failed)
