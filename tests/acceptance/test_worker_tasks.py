"""Tasks run by the calls of the worker API alone, and what a lease token opens."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from intermission import Chunk, Context, File, Pipeline, Source, step
from intermission.backends.http.task_io import HttpIO
from intermission.backends.http.work_client import WorkClient
from intermission.backends.source_files import identify
from intermission.backends.store.memory import MemoryStore
from intermission.engine.planning import expand, make_job
from intermission.engine.receipt import adopt, receipt_key
from intermission.errors import CorruptArtifact, LedgerError, SourceChanged, SourceError
from intermission.model import Job, JobState, Receipt
from intermission.scratch import holding
from intermission.testing.clock import FakeClock
from servers.fault_proxy import CUT_BODY, LOST_REPLY, FaultProxy, answer
from servers.worker_api import ADMIN, Hands, Served, problem, served_in, serving

PIECE_BYTES = 5_000


class Piece(Chunk):
    n: int


@step(version=1)
def cut(source: Source) -> list[Piece]: ...


@step(version=1)
def copy(ctx: Context, source: Source, piece: Piece) -> File: ...


@step(version=1, durable=False)
def measure(copy: File, piece: Piece) -> int: ...


@step(version=1, publish="{name}")
def join(ctx: Context, copy: list[File], measure: list[int]) -> File: ...


def so_far(measure: list[int | None]) -> dict[str, str]:
    return {"so far.txt": f"{sum(one or 0 for one in measure)} bytes"}


PIPELINE = Pipeline("copying", [cut, copy, measure, join], output="copies", preview=so_far)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with served_in(tmp_path / "server") as served:
        served.bench.pipelines["copying"] = PIPELINE
        yield served


@pytest.fixture
def job(served: Served, tmp_path: Path) -> Job:
    return submitted(served, tmp_path)


def submitted(served: Served, folder: Path, pieces: int = 3) -> Job:
    path = folder / "a film.bin"
    path.write_bytes(bytes(range(250)) * (PIECE_BYTES * pieces // 250))
    job = make_job(PIPELINE, identify(path, MemoryStore()), {})
    served.bench.ledger.submit(job, expand(job, {}))
    return job


def run(hands: Hands, lease: dict[str, Any]) -> None:
    """What a worker does with a lease."""
    token = lease["token"]
    if lease["step"] == "cut":
        result: Any = [{"n": n} for n in range(lease["source"]["size_bytes"] // PIECE_BYTES)]
        files = []
    elif lease["step"] == "copy":
        first = lease["chunk"]["n"] * PIECE_BYTES
        wanted = f"bytes={first}-{first + PIECE_BYTES - 1}"
        answer = hands.get(token, lease["source"]["url"], Range=wanted)
        assert answer.status_code == 206, answer.text
        result, files = "piece.bin", [hands.add(token, "piece.bin", answer.content)]
        result = json.dumps(result)
    elif lease["step"] == "measure":
        (output,) = inputs(hands, lease, "copy")
        result, files = output["files"][0]["size_bytes"], []
    else:
        whole = b"".join(fetched(hands, token, one) for one in inputs(hands, lease, "copy"))
        total = sum(json.loads(one["result"]) for one in inputs(hands, lease, "measure"))
        assert total == len(whole)
        result, files = '"whole.bin"', [hands.add(token, "whole.bin", whole)]
    assert hands.complete(token, result, *files) == {"accepted": True, "problem": ""}


def inputs(hands: Hands, lease: dict[str, Any], param: str) -> list[dict[str, Any]]:
    page = lease["inputs"][param]
    found = list(page["outputs"])
    while page["next"] is not None:
        path = f"/api/v1/worker/inputs?input={param}&after={page['next']}"
        page = hands.get(lease["token"], path).json()
        found += page["outputs"]
    return found


def fetched(hands: Hands, token: str, output: dict[str, Any]) -> bytes:
    (file,) = output["files"]
    body = hands.get(token, file["url"]).content
    assert hashlib.sha256(body).hexdigest() == file["sha256"]
    return body


def until_done(hands: Hands) -> None:
    while leases := hands.claim(2):
        for lease in leases:
            run(hands, lease)


def test_a_job_is_done_by_a_worker_that_has_only_the_server(served: Served, tmp_path: Path) -> None:
    job = submitted(served, tmp_path, pieces=40)  # more than come with a lease
    until_done(served.hands())
    (row,) = served.bench.ledger.jobs(job.key)
    assert row.state is JobState.DONE
    workspace = served.bench.workspace(job)
    assert workspace.open_outputs is not None
    assert workspace.open_outputs().read("whole.bin") == job.source.path.read_bytes()
    # Whoever works in the storage itself finds every task done.
    for task in served.bench.ledger.tasks(job.key):
        if task.step != "measure":
            store = workspace.open_store()
            assert adopt(store, task.step, task.key, tmp_path / "scratch"), task.name


def test_the_server_writes_the_receipt(served: Served, job: Job) -> None:
    hands = served.hands()
    (plan,) = hands.claim()
    run(hands, plan)
    store = served.bench.workspace(job).open_store()
    (row, *_) = served.bench.ledger.tasks(job.key)
    receipt = Receipt.from_json(store.read(receipt_key("cut", row.key)))
    assert (receipt.fence, receipt.step, receipt.task_key) == (1, "cut", row.key)
    assert receipt.parts["source content"] == job.source.fingerprint
    assert receipt.result == '[{"n":0},\n{"n":1},\n{"n":2}]'


def test_a_finished_task_is_adopted_and_not_given_out(served: Served, tmp_path: Path) -> None:
    job = submitted(served, tmp_path)
    until_done(served.hands())
    served.bench.ledger.delete(job.key)
    served.bench.ledger.submit(job, expand(job, {}))
    hands = served.hands()
    steps: list[str] = []
    while (answer := hands.said("claim", process="p", room=4))["leases"] or answer["again"]:
        for lease in answer["leases"]:
            steps.append(lease["step"])
            run(hands, lease)
    assert set(steps) == {"measure"}  # it has no receipt
    assert [row.state for row in served.bench.ledger.jobs()] == [JobState.DONE]


def test_a_token_is_good_for_one_task_alone(served: Served, job: Job) -> None:
    hands, thief = served.hands(), served.hands()
    (plan,) = hands.claim()
    token = plan["token"]
    payload, _, signature = token.partition(".")
    for given, by in (
        (token, thief),
        (f"{payload}.{'0' * len(signature)}", hands),
        (f"x{payload}.{signature}", hands),
        (payload, hands),
        ("nothing", hands),
    ):
        problem(by.get(given, plan["source"]["url"]), 410)
        problem(by.put(given, "x.bin", b"x"), 410)
        assert by.complete(given, []) == {"accepted": False, "problem": ""}
        assert by.said("release", leases=[given], reason="drained") == {"released": 0}
        failed = [{"lease": given, "error": "E", "message": "no", "permanent": True}]
        assert by.said("fail", failed=failed) == {"states": [None]}
        deferred = by.said("defer", lease=given, token="t", timeout_s=1)
        assert deferred == {"accepted": False}
    assert [row.state for row in served.bench.ledger.tasks(job.key)] == ["leased"]
    assert [stat.key for stat in served.bench.workspace(job).open_store().list("")] == []
    run(hands, plan)


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "..%2Fx",
        "a/../../x",
        "%2Fetc%2Fx",
        "a%00b",
        "a%0Ab",
        ".hidden",
        "a//b",
        "",
        "%2e%2e/%2e%2e/published/x",
        "a" * 300,
    ],
)
def test_an_artifact_stays_within_its_attempt(served: Served, job: Job, name: str) -> None:
    hands = served.hands()
    run(hands, hands.claim()[0])
    (lease,) = hands.claim()
    before = [stat.key for stat in served.bench.workspace(job).open_store().list("")]
    assert hands.put(lease["token"], name, b"x").status_code in (400, 404, 405, 410, 422)
    named = {"name": name or "x", "size_bytes": 1, "sha256": "0" * 64}
    assert not hands.complete(lease["token"], '"x"', named)["accepted"]
    assert [stat.key for stat in served.bench.workspace(job).open_store().list("")] == before


def test_what_was_not_uploaded_is_not_in_a_receipt(served: Served, job: Job) -> None:
    hands = served.hands()
    run(hands, hands.claim()[0])
    lease, other = hands.claim(2)
    file = hands.add(other["token"], "piece.bin", b"other")
    answer = hands.complete(lease["token"], '"piece.bin"', file)
    assert not answer["accepted"]
    assert "found none" in answer["problem"]
    hands.add(lease["token"], "piece.bin", b"longer than that")
    assert "one of 16" in hands.complete(lease["token"], '"piece.bin"', file)["problem"]
    assert hands.complete(other["token"], '"piece.bin"', file)["accepted"]


@pytest.mark.parametrize("result", ["", "{", "7", "[1]", '[{"m": 1}]', '[{"n": 1}, {"n": 1}]'])
def test_a_result_that_is_none_of_the_steps_is_refused(
    served: Served, job: Job, result: str
) -> None:
    hands = served.hands()
    (plan,) = hands.claim()
    answer = hands.complete(plan["token"], result)
    assert not answer["accepted"]
    assert answer["problem"]
    run(hands, plan)


def test_a_token_of_an_older_fence_opens_nothing(served: Served, tmp_path: Path) -> None:
    clock = FakeClock()
    served.bench.use(tmp_path / "fenced", clock)
    job = submitted(served, tmp_path)
    stopped, heir = served.hands(), served.hands()
    (old,) = stopped.claim(lease_s=0.5)
    clock.advance(60)
    served.bench.ledger.rescue()
    (new,) = heir.claim()
    assert (new["task"], new["fence"]) == (old["task"], old["fence"] + 1)
    _until_ended(stopped, old)
    problem(stopped.put(old["token"], "x.bin", b"x"), 410)
    assert stopped.complete(old["token"], [{"n": 0}]) == {"accepted": False, "problem": ""}
    renewed = stopped.said("renew", process="hands", leases=[{"lease": old["token"]}])
    assert renewed["lost"] == [old["task"]]
    assert list(served.bench.workspace(job).open_store().list("")) == []
    run(heir, new)


def _until_ended(hands: Hands, lease: dict[str, Any]) -> None:
    """The server takes a lease that it gave out for current until its time is over."""
    while hands.get(lease["token"], lease["source"]["url"]).status_code == 200:
        pass
    problem(hands.get(lease["token"], lease["source"]["url"]), 410)


def test_a_revoked_key_opens_nothing_at_once(served: Served, job: Job) -> None:
    id, key = served.register()
    hands = served.hands(key)
    (plan,) = hands.claim()
    assert served.call("DELETE", f"/api/v1/workers/{id}", ADMIN).status_code == 204
    problem(hands.get(plan["token"], plan["source"]["url"]), 401)
    problem(hands.put(plan["token"], "x.bin", b"x"), 401)
    problem(hands.ask("complete", done=[{"lease": plan["token"], "result": "[]"}]), 401)
    problem(hands.ask("claim", process="p", room=1), 401)


def test_a_repeated_end_is_answered_as_before(served: Served, job: Job) -> None:
    hands = served.hands()
    (plan,) = hands.claim()
    run(hands, plan)
    run(hands, plan)
    leases = hands.claim(2)
    file = hands.add(leases[0]["token"], "piece.bin", b"bytes")
    assert hands.add(leases[0]["token"], "piece.bin", b"bytes") == file
    problem(hands.put(leases[0]["token"], "piece.bin", b"others"), 409)
    for _ in range(2):
        assert hands.complete(leases[0]["token"], '"piece.bin"', file)["accepted"]
    failed = [{"lease": leases[1]["token"], "error": "ValueError", "message": "no"}]
    assert hands.said("fail", failed=failed) == {"states": ["retrying"]}
    assert hands.said("fail", failed=failed) == {"states": [None]}


def test_leases_outlive_the_server(served: Served, job: Job) -> None:
    hands = served.hands()
    (plan,) = hands.claim()
    run(hands, plan)
    (lease,) = hands.claim()
    file = hands.add(lease["token"], "piece.bin", b"bytes")
    # After a restart a server has nothing in memory.
    with serving(served.bench, served.registry) as url:
        again = served.hands(hands.key, url)
        assert again.get(lease["token"], lease["source"]["url"]).status_code == 200
        renewed = again.said("renew", process="hands", leases=[{"lease": lease["token"]}])
        assert renewed == {"lost": [], "cancelled": []}
        for _ in range(2):
            assert again.complete(lease["token"], '"piece.bin"', file)["accepted"]
        until_done(again)
    assert [row.state for row in served.bench.ledger.jobs()] == [JobState.DONE]


def test_a_large_plan_comes_as_an_artifact(served: Served, tmp_path: Path) -> None:
    job = submitted(served, tmp_path)
    hands = served.hands()
    (plan,) = hands.claim()
    texts = [f'{{"n":{n}}}' for n in range(20_000)]
    large = json.dumps([{"n": n} for n in range(20_000)])
    assert len(large) > plan["result_max_bytes"]
    assert "result.json" in hands.complete(plan["token"], large)["problem"]
    body = ("[" + ",\n".join(texts) + "]").encode()
    assert hands.complete(plan["token"], "", hands.add(plan["token"], "result.json", body))[
        "accepted"
    ]
    (row,) = served.bench.ledger.jobs(job.key)
    assert sum(row.counts["copy"].values()) == 20_000


def test_no_body_is_read_beyond_its_limit(served: Served, job: Job) -> None:
    hands = served.hands()
    (plan,) = hands.claim()
    problem(hands.ask("complete", done=[{"lease": plan["token"], "result": "x" * 9_000_000}]), 413)
    with served_in(served.bench.folder / "small", object_max_bytes=1000) as small:
        small.bench.pipelines["copying"] = PIPELINE
        submitted(small, served.bench.folder)
        (lease,) = (other := small.hands()).claim()
        assert lease["artifact_max_bytes"] == 1000
        problem(other.put(lease["token"], "x.bin", b"x" * 1001), 413)
        problem(other.put(lease["token"], "x.bin", b"x", sha256="0" * 64), 422)


def test_an_altered_input_is_made_again(served: Served, job: Job) -> None:
    hands = served.hands()
    run(hands, hands.claim()[0])
    copies = hands.claim(3)
    for lease in copies:
        run(hands, lease)
    store = served.bench.workspace(job).open_store()
    (lease, *_) = hands.claim(3)
    (file,) = lease["inputs"]["copy"]["outputs"][0]["files"]
    for stat in list(store.list("artifacts/copy/")):
        path = store.local_path(stat.key)
        assert path is not None
        path.chmod(0o644)
        path.write_bytes(b"altered")
    problem(hands.get(lease["token"], file["url"]), 409)
    states = [row.state for row in served.bench.ledger.tasks(job.key) if row.step == "copy"]
    assert "corrupt" in states


def test_a_cancelled_job_is_told_with_the_renewal(served: Served, job: Job) -> None:
    hands = served.hands()
    (plan,) = hands.claim()
    served.bench.ledger.cancel(job.key, reason="no")
    held = [{"lease": plan["token"], "progress": 0.5}]
    renewed = hands.said("renew", process="hands", leases=held)
    assert renewed == {"lost": [], "cancelled": [plan["task"]]}


@pytest.fixture
def proxy(served: Served) -> Iterator[FaultProxy]:
    with FaultProxy(served.url.removeprefix("http://")).running() as proxy:
        yield proxy


def slot_io(proxy: FaultProxy, key: str, job: Job, folder: Path) -> tuple[WorkClient, HttpIO]:
    """What a worker and its slot have of a server."""
    return WorkClient(proxy.url, key), HttpIO(proxy.url, key, job, folder)


def test_a_source_is_fetched_whole_and_once(
    served: Served, proxy: FaultProxy, tmp_path: Path
) -> None:
    job = submitted(served, tmp_path, pieces=600)
    client, io = slot_io(proxy, served.register()[1], job, tmp_path / "cache")
    (lease,) = client.claim("w", 1, lease_ttl_s=60)
    proxy.arm(CUT_BODY)
    found = io.source(lease).path
    assert (found.name, found.read_bytes()) == (job.source.name, job.source.path.read_bytes())
    assert [one.range[:6] for one in proxy.requests] == ["", "bytes="], "it went on where it was"
    proxy.arm()
    with ThreadPoolExecutor(2) as pool:
        again = list(pool.map(lambda _: io.source(lease).path, range(2)))
    assert again == [found, found]
    assert proxy.requests == []


def test_a_source_that_changed_is_refused(
    served: Served, proxy: FaultProxy, tmp_path: Path
) -> None:
    job = submitted(served, tmp_path)
    client, io = slot_io(proxy, served.register()[1], job, tmp_path / "cache")
    (lease,) = client.claim("w", 1, lease_ttl_s=60)
    job.source.path.write_bytes(job.source.path.read_bytes()[::-1])
    with pytest.raises(SourceChanged):
        _ = io.source(lease).path
    job.source.path.unlink()
    with pytest.raises(SourceError):
        _ = io.source(lease).path
    copies = (tmp_path / "cache").rglob("*")
    assert not [one for one in copies if one.is_file() and one.stat().st_size]


def test_files_come_and_go_whole_or_again(
    served: Served, proxy: FaultProxy, tmp_path: Path
) -> None:
    job = submitted(served, tmp_path, pieces=1)
    client, io = slot_io(proxy, served.register()[1], job, tmp_path / "cache")
    (plan,) = client.claim("w", 1, lease_ttl_s=60)
    proxy.arm(LOST_REPLY)
    (end,) = client.complete([(plan.task_id, plan.fence, '[{"n":0}]', ())])
    assert end.accepted
    (copied,) = client.claim("w", 1, lease_ttl_s=60)
    with holding():
        folder = io.folder(copied, copied.key, "attempt")
        (folder / "some").mkdir(parents=True)
        (folder / "some" / "a piece.bin").write_bytes(body := bytes(range(256)) * 20_000)
        proxy.arm(LOST_REPLY)
        files = io.keep(copied, copied.key, "attempt", folder)
    assert [one.name for one in files] == ["some/a piece.bin"]
    (end,) = client.complete([(copied.task_id, copied.fence, '"some/a piece.bin"', files)])
    assert end.accepted, end
    (lease,) = client.claim("w", 1, lease_ttl_s=60)
    (output,) = client.inputs(lease, job.step(lease.step).edges)["copy"]
    assert output is not None
    proxy.arm(CUT_BODY)
    found = io.files(lease, output)["some/a piece.bin"]
    assert found.read_bytes() == body
    beside = [one.name for one in found.parent.iterdir() if one.stat().st_size]
    assert beside == ["a piece.bin"]


def test_an_altered_input_is_told_from_a_broken_line(
    served: Served, proxy: FaultProxy, tmp_path: Path
) -> None:
    job = submitted(served, tmp_path, pieces=1)
    key = served.register()[1]
    client, io = slot_io(proxy, key, job, tmp_path / "cache")
    hands = served.hands(key)
    for _ in range(2):
        run(hands, hands.claim()[0])
    (lease,) = client.claim("w", 1, lease_ttl_s=60)
    (output,) = client.inputs(lease, job.step(lease.step).edges)["copy"]
    assert output is not None
    store = served.bench.workspace(job).open_store()
    (stat,) = store.list("artifacts/copy/")
    store.delete(stat.key)
    with pytest.raises(CorruptArtifact) as caught:
        _ = io.files(lease, output)["piece.bin"]
    assert caught.value.task_key == output.task_key
    proxy.arm(answer(503), times=1000)
    with pytest.raises(LedgerError, match="no usable answer"):
        WorkClient(proxy.url, key, patience_s=0.3).claim("w", 1, lease_ttl_s=60)


def test_what_is_done_so_far_can_be_used(served: Served, job: Job) -> None:
    hands = served.hands()
    steps: list[str] = []
    while "measure" not in steps:
        for lease in hands.claim():
            steps.append(lease["step"])
            run(hands, lease)
    outputs = served.bench.workspace(job).open_outputs
    assert outputs is not None
    until_s = time.monotonic() + 60
    while outputs().stat("so far.txt") is None:
        assert time.monotonic() < until_s, "there is no preview"
        threading.Event().wait(0.05)
    assert outputs().read("so far.txt") == f"{PIECE_BYTES} bytes".encode()
