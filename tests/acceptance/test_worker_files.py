"""Artifacts as a worker sends them, and parts of files: bytes, lengths, and what may go wrong."""

from __future__ import annotations

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

from intermission.backends.source_files import identify
from intermission.backends.store.memory import MemoryStore
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
        "X-Content-SHA256": hashlib.sha256(body).hexdigest(),
    }


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
