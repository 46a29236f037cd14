"""The files of jobs as an operator's commands reach them: names, bytes, and what may go wrong."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from intermission.backends.http.store import HttpStore
from intermission.errors import (
    AlreadyExists,
    NotFound,
    StoreError,
    StoreUnavailable,
)
from intermission.model import Job
from intermission.testing.jobs import line_job, submit
from servers.fault_proxy import CUT_BODY, LOST_REPLY, RESET, FaultProxy, answer
from servers.worker_api import ADMIN, Served, problem, served_in

MAX_BYTES = 4 * 1024**2


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_in(tmp_path_factory.mktemp("served"), object_max_bytes=MAX_BYTES) as served:
        yield served


@pytest.fixture
def job(served: Served) -> Job:
    return submit(served.bench.ledger, line_job(key=uuid4().hex))


@pytest.fixture(scope="module")
def key() -> str:
    return ADMIN


def put(
    served: Served, key: str, path: str, body: bytes, *, sha256: str | None = None, **headers: str
) -> httpx.Response:
    fields = {"X-Content-SHA256": sha256 or hashlib.sha256(body).hexdigest()}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    return served.call("PUT", path, key, body, headers=fields)


def below(job: Job, key: str = "", area: str = "store") -> str:
    return f"/api/v1/worker/jobs/{job.key}/{area}" + (f"/{key}" if key else "")


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but for what the ledger and the stores keep for themselves."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "sqlite" not in path.name and ".tmp" not in path.parts
    }


TRAVERSALS = [
    "../x",
    "..",
    "a/../../x",
    "a/..",
    "./x",
    "/x",
    "//x",
    "/etc/passwd",
    "a//x",
    "a/",
    "%2e%2e/x",
    "%2e%2e%2fx",
    "..%2f..%2f..%2fx",
    "a%2f..%2f..%2fx",
    "%2fetc%2fpasswd",
    "..%5cx",
    "a%5c..%5cx",
    "a\\x",
    "x%00",
    "x%00.json",
    "x%0a",
    "x%0d%0aX-Evil:%201",
    "x%7f",
    "%ff",
    "%c0%ae%c0%ae/x",
    "x%ed%a0%80",
    ".tmp/x",
    ".tmp%2fx",
    "%2500",
    "a" * 256,
    "%C3%A9" * 128,
    "/".join(["abc"] * 300),
]


@pytest.mark.parametrize("area", ["store", "outputs"])
def test_no_name_leads_out_of_a_store(served: Served, key: str, job: Job, area: str) -> None:
    (served.bench.folder / "jobs" / "x").parent.mkdir(parents=True, exist_ok=True)
    (served.bench.folder / "jobs" / "x").write_bytes(b"a neighbour")
    before = tree(served.bench.folder.parent)
    for name in TRAVERSALS:
        for method in ("PUT", "GET", "HEAD", "DELETE"):
            status = _raw(served, method, below(job, name, area), ADMIN)
            assert 400 <= status < 500, (method, name, status)
    assert tree(served.bench.folder.parent) == before


@pytest.mark.parametrize("job_key", ["..", "%2e%2e", "a%2fb", "no-such-job", "%00", "a" * 200])
def test_no_job_leads_out_of_the_fleet(served: Served, key: str, job_key: str) -> None:
    before = tree(served.bench.folder.parent)
    for method in ("PUT", "GET", "DELETE"):
        path = f"/api/v1/worker/jobs/{job_key}/store/a"
        assert 400 <= _raw(served, method, path, ADMIN) < 500
    assert tree(served.bench.folder.parent) == before


def test_a_move_stays_inside(served: Served, job: Job) -> None:
    store = HttpStore(served.url, ADMIN, job.key)
    store.create("a", b"")
    for to in ("../x", "/x", "a\\b", "x\0", ".tmp/x", ""):
        problem(served.call("POST", below(job), ADMIN, {"key": "a", "to": to}), 422)
        problem(served.call("POST", below(job), ADMIN, {"key": to, "to": "b"}), 422)
    assert [one.key for one in store.list("")] == ["a"]


def test_bytes_that_are_not_as_announced_are_refused(served: Served, key: str, job: Job) -> None:
    path = below(job, "a")
    problem(put(served, key, path, b"body", sha256="0" * 64, If_None_Match="*"), 422)
    for wrong in ("", "0" * 63, "G" * 64):
        headers = {"X-Content-SHA256": wrong, "If-None-Match": "*"}
        problem(served.call("PUT", path, key, b"body", headers=headers), 400)
    large = b"x" * 2_000_000
    problem(put(served, key, path, large, sha256="0" * 64, If_None_Match="*"), 422)
    assert _kept(served, job) == []


def test_an_upload_says_how_long_it_is_and_is_not_too_long(
    served: Served, key: str, job: Job
) -> None:
    path = below(job, "a")
    problem(put(served, key, path, b"x" * (MAX_BYTES + 1), If_None_Match="*"), 413)

    def pieces() -> Iterator[bytes]:
        yield b"body"

    headers = {"Authorization": f"Bearer {key}", "If-None-Match": "*"}
    headers["X-Content-SHA256"] = hashlib.sha256(b"body").hexdigest()
    problem(served.client.put(served.url + path, content=pieces(), headers=headers), 411)
    assert _kept(served, job) == []
    assert put(served, key, path, b"x" * MAX_BYTES, If_None_Match="*").status_code == 201


@pytest.mark.parametrize("sent_bytes", [0, 10, 2_000_000])
def test_an_upload_that_is_cut_leaves_nothing(
    served: Served, key: str, job: Job, sent_bytes: int
) -> None:
    host, _, port = served.url.removeprefix("http://").partition(":")
    body = b"x" * 3_000_000
    head = [
        f"PUT {below(job, 'a')} HTTP/1.1",
        f"Host: {host}",
        f"Authorization: Bearer {key}",
        f"X-Content-SHA256: {hashlib.sha256(body).hexdigest()}",
        f"Content-Length: {len(body)}",
        "If-None-Match: *",
    ]
    with socket.create_connection((host, int(port))) as line:
        line.sendall("\r\n".join([*head, "", ""]).encode() + body[:sent_bytes])
        if sent_bytes > 1024**2:  # so much is kept in a file; the server has it half
            _until(lambda: bool(_spooled(served, job)))
    _until(lambda: _spooled(served, job) == [])
    assert _kept(served, job) == []
    assert put(served, key, below(job, "a"), body, If_None_Match="*").status_code == 201


def test_of_two_uploads_of_one_name_one_wins(served: Served, key: str, job: Job) -> None:
    bodies = [f"{n}".encode() * 2_000_000 for n in range(2)]
    path = below(job, "artifacts/a/1/out.bin")
    with ThreadPoolExecutor(2) as pool:
        answers = list(
            pool.map(lambda body: put(served, key, path, body, If_None_Match="*"), bodies)
        )
    assert sorted(one.status_code for one in answers) == [201, 409]
    winner = bodies[[one.status_code for one in answers].index(201)]
    assert HttpStore(served.url, key, job.key).read("artifacts/a/1/out.bin") == winner
    again = put(served, key, path, winner, If_None_Match="*")
    assert problem(again, 409)["type"] == "urn:intermission:error:AlreadyExists"
    assert _spooled(served, job) == []


def test_a_version_that_is_gone_is_a_failed_condition(served: Served, job: Job) -> None:
    path = below(job, "published/a.json")
    version = put(served, ADMIN, path, b"1", If_None_Match="*").headers["etag"]
    assert put(served, ADMIN, path, b"2", If_Match=version).status_code == 201
    problem(put(served, ADMIN, path, b"3", If_Match=version), 412)


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [
        ("bytes=0-3", 206, b"0123"),
        ("bytes=4-", 206, b"456789"),
        ("bytes=-3", 206, b"789"),
        ("bytes=-99", 206, b"0123456789"),
        ("bytes=5-99", 206, b"56789"),
        ("bytes=0-1,4-5", 200, b"0123456789"),
        ("lines=1-2", 200, b"0123456789"),
        ("bytes=10-", 416, None),
        ("bytes=-0", 416, None),
    ],
)
def test_a_part_of_an_object_may_be_asked_for(
    served: Served, key: str, job: Job, asked: str, status: int, body: bytes | None
) -> None:
    assert put(served, key, below(job, "a"), b"0123456789", If_None_Match="*").status_code == 201
    found = served.call("GET", below(job, "a"), key, headers={"Range": asked})
    assert found.status_code == status
    if body is not None:
        assert found.content == body
    stale = served.call("GET", below(job, "a"), key, headers={"Range": asked, "If-Range": '"x"'})
    assert (stale.status_code, stale.content) == (200, b"0123456789")


@pytest.fixture
def proxy(served: Served) -> Iterator[FaultProxy]:
    with FaultProxy(served.url.removeprefix("http://")).running() as proxy:
        yield proxy


def test_a_write_whose_answer_is_lost_is_the_writers_own(
    proxy: FaultProxy, key: str, job: Job
) -> None:
    store = HttpStore(proxy.url, key, job.key)
    proxy.arm(LOST_REPLY)
    assert store.create("a", b"mine").size_bytes == 4
    proxy.arm(answer(502))
    assert store.create("b", b"mine").size_bytes == 4
    proxy.arm(LOST_REPLY)
    with pytest.raises(AlreadyExists):
        store.create("a", b"other")
    proxy.arm(RESET)
    with pytest.raises(AlreadyExists):
        store.create("a", b"more than this")
    proxy.arm(LOST_REPLY)
    store.move("a", "quarantine/a")
    assert [one.key for one in store.list("")] == ["b", "quarantine/a"]


def test_a_read_that_is_cut_is_made_again(proxy: FaultProxy, job: Job, tmp_path: Path) -> None:
    store = HttpStore(proxy.url, ADMIN, job.key)
    body = bytes(range(256)) * 15_000
    store.create("a", body)
    proxy.arm(CUT_BODY)
    assert store.read("a") == body
    proxy.arm(CUT_BODY, matching=lambda request: request.method == "GET")
    sha256 = hashlib.sha256(body).hexdigest()
    path = store.fetch("a", tmp_path / "a", size_bytes=len(body), sha256=sha256)
    assert path.read_bytes() == body
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
    proxy.arm(answer(503), times=1000)
    with pytest.raises(StoreUnavailable, match="no usable answer"):
        HttpStore(proxy.url, ADMIN, job.key, patience_s=0.3).read("a")


def test_a_store_of_no_job_is_told_from_a_missing_object(served: Served, key: str) -> None:
    store = HttpStore(served.url, key, "nothing")
    with pytest.raises(StoreError):
        store.stat("a")
    with pytest.raises(NotFound):
        store.read("a")


def _raw(served: Served, method: str, path: str, key: str) -> int:
    """The status of a request whose path is sent as it stands."""
    connection = HTTPConnection(served.url.removeprefix("http://"), timeout=20)
    try:
        connection.putrequest(method, path.encode("latin-1").decode("latin-1"))
        connection.putheader("Authorization", f"Bearer {key}")
        connection.putheader("X-Content-SHA256", hashlib.sha256(b"x").hexdigest())
        connection.putheader("If-None-Match", "*")
        connection.putheader("Content-Length", "1")
        connection.endheaders(b"x")
        return connection.getresponse().status
    finally:
        connection.close()


def _kept(served: Served, job: Job) -> list[str]:
    folder = served.bench.workspace(job).folder
    return list(tree(folder)) if folder.exists() else []


def _spooled(served: Served, job: Job) -> list[str]:
    folder = served.bench.workspace(job).folder / ".tmp"
    return [one.name for one in folder.glob("*") if one.name != "lock"] if folder.exists() else []


def _until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until_s
        threading.Event().wait(0.01)
