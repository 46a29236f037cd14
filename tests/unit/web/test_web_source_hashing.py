"""Submitting large sources: no thread that serves requests reads a whole file."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from web_jobs import Connect

from intermission.backends import source_files as sources
from intermission.composition import locations

MANY = 60
"""More than there are threads for requests."""
REAL = sources.hash_files
LETTERS = f"{Path(__file__).parents[2] / 'acceptance' / 'pipelines.py'}:letters"


@pytest.fixture
def client(connect: Connect, tmp_path: Path) -> TestClient:
    return connect(settings={"pipelines": (LETTERS,)}, roots=[tmp_path])


def files(folder: Path, many: int) -> list[Path]:
    made = [folder / f"{number}.txt" for number in range(many)]
    for path in made:
        path.write_text(path.name)
    return made


def submitted(client: TestClient, path: Path) -> Any:
    body = {"pipeline": "letters", "source": str(path)}
    return client.post("/api/v1/jobs", json=body)


def test_no_thread_of_a_request_reads_a_whole_source(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[str] = []

    def hash_files(*paths: Path) -> str:
        readers.append(threading.current_thread().name)
        return REAL(*paths)

    monkeypatch.setattr(sources, "hash_files", hash_files)
    (path,) = files(tmp_path, 1)
    assert submitted(client, path).status_code == 202
    assert set(readers) == {"source-hash"}


def test_others_are_served_while_sources_are_hashed(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, begun = threading.Event(), threading.Event()
    hashed: list[Path] = []

    def hash_files(*paths: Path) -> str:
        hashed.extend(paths)
        begun.set()
        assert go_on.wait(60)
        return REAL(*paths)

    monkeypatch.setattr(sources, "hash_files", hash_files)
    same, *others = files(tmp_path, MANY)
    with ThreadPoolExecutor(2 * MANY) as people:
        answers = [people.submit(submitted, client, path) for path in [same, *others] + [same] * 9]
        assert begun.wait(60)
        try:
            assert client.get("/api/v1/jobs").json()["jobs"] == []
        finally:
            go_on.set()
        assert {answer.result().status_code for answer in answers} <= {200, 202}
    assert hashed.count(same) == 1, "one hash serves everybody who asks meanwhile"


def test_a_source_that_changes_after_its_hash_is_refused(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = files(tmp_path, 1)

    def identify(*asked: Any, **how: Any) -> Any:
        found = real(*asked, **how)
        path.write_text("something else")
        return found

    real = locations.identify_location
    monkeypatch.setattr("intermission.services.source_hashing.identify_location", identify)
    answer = submitted(client, path)
    assert answer.status_code == 409
    assert "written to while" in answer.json()["detail"]
