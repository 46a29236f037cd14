"""Artifacts as a worker sends them, and parts of files: bytes, lengths, and what may go wrong."""

from __future__ import annotations

import base64
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from intermission.backends.http.task_io import HttpIO
from intermission.backends.http.work_client import WorkClient
from intermission.backends.source_files import identify
from intermission.backends.store.memory import MemoryStore
from intermission.engine.receipt import peek
from intermission.model import Job
from intermission.testing.jobs import line_job, submit
from servers.worker_api import Hands, Served, problem, served_in

MAX_BYTES = 4 * 1024**2
TEXT = b"0123456789"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_in(tmp_path_factory.mktemp("served"), object_max_bytes=MAX_BYTES) as served:
        yield served


@pytest.fixture(scope="module")
def hands(served: Served) -> Hands:
    return served.hands()


@pytest.fixture
def job(served: Served, tmp_path: Path) -> Job:
    path = tmp_path / "a.bin"
    path.write_bytes(TEXT)
    source = identify(path, MemoryStore())
    return submit(served.bench.ledger, replace(line_job(key=uuid4().hex), source=source))


@pytest.fixture
def token(hands: Hands, job: Job) -> Iterator[str]:
    """Of a lease for a task of the job."""
    (lease,) = hands.claim()
    assert lease["job"] == job.key
    yield lease["token"]
    hands.complete(lease["token"], "1")


def test_bytes_that_are_not_as_announced_are_refused(
    served: Served, hands: Hands, job: Job, token: str
) -> None:
    problem(hands.put(token, "a", b"body", sha256="0" * 64), 422)
    for wrong in ("0" * 63, "G" * 64):
        problem(hands.put(token, "a", b"body", sha256=wrong), 400)
    problem(hands.put(token, "a", b"x" * 2_000_000, sha256="0" * 64), 422)
    assert _kept(served, job) == _spooled(served, job) == []


def test_an_upload_says_how_long_it_is_and_is_not_too_long(
    served: Served, hands: Hands, job: Job, token: str
) -> None:
    problem(hands.put(token, "a", b"x" * (MAX_BYTES + 1)), 413)

    def pieces() -> Iterator[bytes]:
        yield b"body"

    headers = _headers(hands, token, b"body")
    url = f"{served.url}/api/v1/worker/artifacts/a"
    problem(served.client.put(url, content=pieces(), headers=headers), 411)
    assert _kept(served, job) == []
    assert hands.put(token, "a", b"x" * MAX_BYTES).status_code == 201


@pytest.mark.parametrize("sent_bytes", [0, 10, 2_000_000])
def test_an_upload_that_is_cut_leaves_nothing(
    served: Served, hands: Hands, job: Job, token: str, sent_bytes: int
) -> None:
    host, _, port = served.url.removeprefix("http://").partition(":")
    body = b"x" * 3_000_000
    fields = {"Host": host, "Content-Length": str(len(body)), **_headers(hands, token, body)}
    head = ["PUT /api/v1/worker/artifacts/a HTTP/1.1"]
    head += [f"{name}: {value}" for name, value in fields.items()]
    with socket.create_connection((host, int(port))) as line:
        line.sendall("\r\n".join([*head, "", ""]).encode() + body[:sent_bytes])
        if sent_bytes > 1024**2:  # so much is kept in a file; the server has it half
            _until(lambda: bool(_spooled(served, job)))
    _until(lambda: _spooled(served, job) == [])
    assert _kept(served, job) == []
    assert hands.put(token, "a", body).status_code == 201


def test_of_two_uploads_of_one_name_one_wins(
    served: Served, hands: Hands, job: Job, token: str
) -> None:
    bodies = [f"{n}".encode() * 2_000_000 for n in range(2)]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda body: hands.put(token, "out.bin", body), bodies))
    assert sorted(one.status_code for one in answers) == [201, 409]
    winner = bodies[[one.status_code for one in answers].index(201)]
    (kept,) = _kept(served, job)
    assert served.bench.workspace(job).open_store().read(kept) == winner
    assert hands.put(token, "out.bin", winner).status_code == 201  # the same again is no error
    assert _spooled(served, job) == []


def _sent_along(body: bytes, **altered: object) -> dict[str, object]:
    """A file as it comes with the end of its task."""
    own = {"name": "a/note.txt", "size_bytes": len(body), "sha256": _sha256(body)}
    return {**own, "content": base64.b64encode(body).decode(), **altered}


def test_small_files_may_come_with_the_end_of_their_task(
    served: Served, hands: Hands, job: Job
) -> None:
    (lease,) = hands.claim()
    assert lease["inline_max_bytes"] >= 1024
    uploaded = hands.add(lease["token"], "b.txt", b"uploaded")
    for _ in range(2):  # a lost answer is asked for again
        end = hands.complete(lease["token"], "1", uploaded, _sent_along(b"a note"))
        assert end["accepted"], end
    store = served.bench.workspace(job).open_store()
    receipt = peek(store, "fetch", lease["key"])
    assert receipt is not None
    kept = {one.name: store.read(one.key) for one in receipt.files}
    assert kept == {"a/note.txt": b"a note", "b.txt": b"uploaded"}
    (lease,) = hands.claim()
    hands.complete(lease["token"], "1")


@pytest.mark.parametrize(
    "altered",
    [
        {"sha256": "0" * 64},
        {"size_bytes": 7},
        {"content": "a note"},
        {"name": "../note.txt"},
        {"name": "taken.txt"},
    ],
    ids=["hash", "size", "not base64", "name", "name of another"],
)
def test_a_file_that_is_not_as_announced_ends_no_task(
    served: Served, hands: Hands, job: Job, token: str, altered: dict[str, object]
) -> None:
    hands.add(token, "taken.txt", b"another")
    end = hands.complete(token, "1", _sent_along(b"a note", **altered))
    assert not end["accepted"]
    assert end["problem"]
    assert [key.rpartition("/")[2] for key in _kept(served, job)] == ["taken.txt"]


def test_no_more_comes_with_an_end_than_the_lease_says(hands: Hands, job: Job) -> None:
    (lease,) = hands.claim()
    body = b"x" * (lease["inline_max_bytes"] + 100)
    done = [{"lease": lease["token"], "result": "1", "files": [_sent_along(body)]}]
    problem(hands.ask("complete", done=done), 422)
    hands.complete(lease["token"], "1")


def test_a_worker_sends_small_files_with_the_end_and_large_ones_before(
    served: Served, hands: Hands, job: Job, tmp_path: Path
) -> None:
    client = WorkClient(served.url, hands.key)
    (lease,) = client.claim("w", 1, lease_ttl_s=60)
    most = client.shared(job.key).inline_max_bytes
    bodies = {"a": b"a" * (most - 1), "b": b"", "c": b"cc", "d": b"d"}
    for name, body in bodies.items():
        (tmp_path / "made").mkdir(exist_ok=True)
        (tmp_path / "made" / name).write_bytes(body)
    io = HttpIO(served.url, hands.key, job, tmp_path / "scratch", most)
    files = io.keep(lease, lease.key, "attempt", tmp_path / "made")
    assert [key.rpartition("/")[2] for key in _kept(served, job)] == ["c"], "no room for it"
    (end,) = client.complete([(lease.task_id, lease.fence, "1", files)])
    assert end.accepted, end
    store = served.bench.workspace(job).open_store()
    receipt = peek(store, lease.step, lease.key)
    assert receipt is not None
    assert {one.name: store.read(one.key) for one in receipt.files} == bodies
    (last,) = hands.claim()
    hands.complete(last["token"], "1")


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [
        ("bytes=0-3", 206, b"0123"),
        ("bytes=4-", 206, b"456789"),
        ("bytes=-3", 206, b"789"),
        ("bytes=-99", 206, TEXT),
        ("bytes=5-99", 206, b"56789"),
        ("bytes=0-1,4-5", 200, TEXT),
        ("lines=1-2", 200, TEXT),
        ("bytes=10-", 416, None),
        ("bytes=-0", 416, None),
    ],
)
def test_a_part_of_a_source_may_be_asked_for(
    hands: Hands, token: str, asked: str, status: int, body: bytes | None
) -> None:
    found = hands.get(token, "/api/v1/worker/source", Range=asked)
    assert found.status_code == status
    if body is not None:
        assert found.content == body
    stale = hands.get(token, "/api/v1/worker/source", **{"Range": asked, "If-Range": '"x"'})
    assert (stale.status_code, stale.content) == (200, TEXT)


def _headers(hands: Hands, token: str, body: bytes) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {hands.key}",
        "Intermission-Lease": token,
        "X-Content-SHA256": _sha256(body),
    }


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _kept(served: Served, job: Job) -> list[str]:
    store = served.bench.workspace(job).open_store()
    return [stat.key for stat in store.list("artifacts/")]


def _spooled(served: Served, job: Job) -> list[str]:
    """What is on its way in."""
    folder = served.bench.workspace(job).scratch / "uploads"
    return [one.name for one in folder.glob("*")]


def _until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until_s
        threading.Event().wait(0.01)
