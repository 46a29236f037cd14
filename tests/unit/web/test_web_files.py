"""Files in and out: uploads that are written once, outputs that are served as they are."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from web_jobs import Connect, finished, job_over

from intermission.backends.store.local import LocalStore
from intermission.composition.fleet import Fleet
from intermission.composition.locations import location_of
from intermission.composition.uploads import Uploads, checked_name
from intermission.errors import UsageError
from intermission.model import Job, identity

DATA = b"0123456789" * 10
SHA256 = hashlib.sha256(DATA).hexdigest()

TRAVERSALS = [
    *("", ".", "..", "../x", "/etc/passwd", "a/b", "a/../../x", "..\\x", "a\\b", "a\0b", "a\nb"),
    *("~", ".hidden", "-rf", "C:x", "a?b", "a ", "a.", "x" * 201, "\u202egpj.exe", "\ud800"),
]


@pytest.fixture
def client(connect: Connect) -> TestClient:
    return connect()


def put(client: TestClient, name: str, data: Any = DATA, **headers: str) -> Any:
    return client.put(f"/api/v1/sources/{name}", content=data, headers=headers)


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_an_upload_is_written_once(client: TestClient, fleet: Fleet, tmp_path: Path) -> None:
    first = put(client, "talk.mp4", **{"X-Content-SHA256": SHA256})
    assert first.status_code == 201
    assert first.json() == {
        "id": "upload:talk.mp4",
        "name": "talk.mp4",
        "size_bytes": len(DATA),
        "sha256": SHA256,
    }
    place = Uploads(fleet.settings).place("talk.mp4")
    assert isinstance(place, Path)
    assert place.read_bytes() == DATA
    assert put(client, "talk.mp4").status_code == 200
    other = put(client, "talk.mp4", b"other")
    assert other.status_code == 409
    assert "never replaced" in other.json()["remedy"]
    assert place.read_bytes() == DATA
    assert everything(tmp_path / "store") == ["sources/talk.mp4/talk.mp4"], "nothing is left over"


def test_an_upload_in_pieces(client: TestClient) -> None:
    pieces = [bytes([n]) * 300_000 for n in range(10)]
    answer = put(client, "big.bin", iter(pieces))
    assert answer.json()["sha256"] == hashlib.sha256(b"".join(pieces)).hexdigest()
    assert answer.json()["size_bytes"] == 3_000_000


def test_altered_bytes_are_not_kept(client: TestClient, tmp_path: Path) -> None:
    answer = put(client, "talk.mp4", DATA[:-1], **{"X-Content-SHA256": SHA256})
    assert answer.status_code == 422
    assert SHA256 in answer.json()["detail"]
    assert everything(tmp_path / "store") == []
    assert put(client, "talk.mp4", **{"X-Content-SHA256": "short"}).status_code == 422


def test_an_upload_has_a_limit(connect: Connect, tmp_path: Path) -> None:
    client = connect(upload_max_bytes=1000)
    assert put(client, "ok.bin", bytes(1000)).status_code == 201
    declared = put(client, "big.bin", bytes(1001))
    undeclared = put(client, "big.bin", iter([bytes(600), bytes(600)]))
    assert (declared.status_code, undeclared.status_code) == (413, 413)
    assert "1000" in undeclared.json()["detail"]
    assert everything(tmp_path / "store") == ["sources/ok.bin/ok.bin"]


@pytest.mark.parametrize("name", TRAVERSALS)
def test_no_name_leads_anywhere_else(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a source"):
        checked_name(name)


def test_names_that_people_use_are_names(client: TestClient) -> None:
    for name in ("talk.mp4", "a b.mp4", "Gespräch (2).mp4", "会議.mp4", "0"):
        assert put(client, name).json()["name"] == name


@pytest.fixture
def done(fleet: Fleet, tmp_path: Path) -> Job:
    files = {
        "talk.txt": DATA,
        "chunks/ä.vtt": b"WEBVTT",
        "page.html": b"<script>alert(1)</script>",
        "result.json": b"{}",
    }
    return finished(fleet, job_over(tmp_path / "talk.mp4"), files)


def test_outputs_are_listed(client: TestClient, done: Job) -> None:
    listed = client.get(f"/api/v1/jobs/{done.key}/outputs").json()["outputs"]
    assert [one["name"] for one in listed] == ["talk.txt", "chunks/ä.vtt", "page.html"]
    assert listed[0] == {
        "name": "talk.txt",
        "size_bytes": len(DATA),
        "sha256": SHA256,
        "type": "text/plain; charset=utf-8",
        "step": "pack",
    }
    assert client.get(f"/api/v1/jobs/{identity('no')}/outputs").status_code == 404


def test_an_output_is_a_file_and_never_a_page(client: TestClient, done: Job) -> None:
    base = f"/api/v1/jobs/{done.key}/outputs"
    text = client.get(f"{base}/talk.txt")
    assert text.content == DATA
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert text.headers["content-disposition"] == 'attachment; filename="talk.txt"'
    assert text.headers["etag"] == f'"{SHA256}"'
    subtitles = client.get(f"{base}/chunks/ä.vtt")
    assert subtitles.content == b"WEBVTT"
    assert subtitles.headers["content-disposition"].endswith("utf-8''%C3%A4.vtt")
    page = client.get(f"{base}/page.html")
    assert page.headers["content-type"] == "application/octet-stream"
    for answer in (text, subtitles, page):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
    head = client.head(f"{base}/talk.txt")
    assert (head.status_code, head.headers["content-length"]) == (200, "100")


def test_ranges(client: TestClient, done: Job) -> None:
    path = f"/api/v1/jobs/{done.key}/outputs/talk.txt"

    def part(asked: str, **headers: str) -> Any:
        return client.get(path, headers={"Range": asked, **headers})

    middle = part("bytes=10-14")
    assert (middle.status_code, middle.content) == (206, b"01234")
    assert middle.headers["content-range"] == "bytes 10-14/100"
    assert part("bytes=-3").content == b"789"
    assert part("bytes=98-").content == b"89"
    assert (part("bytes=0-0,2-2").status_code, part("bytes=0-99").content) == (206, DATA)
    for asked, status in (
        ("bytes=200-300", 416),
        ("bytes=5-1", 400),
        ("bytes=-", 400),
        ("bytes=x-y", 400),
        ("lines=1-2", 400),
        ("bytes=" + ",".join(f"{n}-{n}" for n in range(0, 60, 2)), 416),
    ):
        refused = part(asked)
        assert refused.status_code == status, asked
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["remedy"]
    assert part("bytes=0-1", **{"If-Range": f'"{SHA256}"'}).status_code == 206
    assert part("bytes=0-1", **{"If-Range": '"other"'}).content == DATA
    known = client.get(path, headers={"If-None-Match": f'"{SHA256}"'})
    assert (known.status_code, known.content) == (304, b"")


def test_an_output_in_a_bucket_is_passed_on_and_not_kept(
    client: TestClient, done: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def read_range(store: LocalStore, key: str, offset: int, size_bytes: int) -> bytes:
        read.append(size_bytes)
        return store.read(key)[offset : offset + size_bytes]

    def refuse(*_: object, **__: object) -> Path:
        raise AssertionError("nobody downloads all of it")

    monkeypatch.setattr(LocalStore, "local_path", lambda *_: None)
    monkeypatch.setattr(LocalStore, "fetch", refuse)
    monkeypatch.setattr(LocalStore, "read_range", read_range, raising=False)
    path = f"/api/v1/jobs/{done.key}/outputs/talk.txt"
    one = client.get(path, headers={"Range": "bytes=7-7"})
    assert (one.status_code, one.content, read) == (206, b"7", [1])
    assert one.headers["content-range"] == "bytes 7-7/100"
    assert "attachment" in one.headers["content-disposition"]
    assert client.get(path, headers={"Range": "bytes=200-300"}).status_code == 416
    head = client.head(path)
    assert (head.status_code, head.headers["content-length"]) == (200, "100")
    assert client.get(path).content == DATA
    read.clear()
    for has in (f'"{SHA256}"', f'"other", W/"{SHA256}"', "*"):
        assert client.get(path, headers={"If-None-Match": has}).status_code == 304, has
    assert read == []
    for lacks in (f'"{SHA256}-part"', f'"{SHA256[:-1]}"', SHA256, '""'):
        assert client.get(path, headers={"If-None-Match": lacks}).status_code == 200, lacks


def test_nothing_else_can_be_downloaded(client: TestClient, done: Job) -> None:
    base = f"/api/v1/jobs/{done.key}/outputs"
    names = ("artifacts", "result.json", "talk.txt/", "/talk.txt", "%2e%2e/talk.mp4", "x%00", "")
    for name in names:
        answer = client.get(f"{base}/{name}")
        assert answer.status_code == 404, name
        assert answer.json()["detail"]


def test_a_damaged_output_is_not_served(client: TestClient, fleet: Fleet, done: Job) -> None:
    store = fleet.app.workspace(location_of(done.source)).open_store()
    (key,) = [stat.key for stat in store.list("artifacts/") if stat.key.endswith("talk.txt")]
    store.replace(key, b"short")
    answer = client.get(f"/api/v1/jobs/{done.key}/outputs/talk.txt")
    assert answer.status_code == 409
    assert "receipt" in answer.json()["detail"]
    store.delete(key)
    assert client.get(f"/api/v1/jobs/{done.key}/outputs/talk.txt").status_code == 409
