"""Sources: their content is their identity, read once and checked around every use."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from intermission.backends import source_files as source_module
from intermission.backends.source_files import SourceCheck, content_hash, identify, signature
from intermission.backends.store.memory import MemoryStore
from intermission.errors import SourceChanged, SourceError
from intermission.model import Source


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "talk é.txt"
    made.write_bytes(b"hello world")
    return made


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the stamps of files made a moment ago for old ones."""
    monkeypatch.setattr(source_module, "STAMP_SETTLES_NS", -1)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read through from here on."""
    found: list[Path] = []

    def spy(path: Path) -> str:
        found.append(path)
        return content_hash(path)

    monkeypatch.setattr(source_module, "content_hash", spy)
    return found


def rewrite(path: Path, data: bytes) -> None:
    """Other bytes, the same size, and the time of the last write put back."""
    stat = path.stat()
    assert len(data) == stat.st_size
    while path.stat().st_ctime_ns == stat.st_ctime_ns:  # stamps move on every few milliseconds
        path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_mtime_ns == stat.st_mtime_ns


def test_a_source_is_its_content(path: Path) -> None:
    made = identify(path, MemoryStore())
    assert made.path == path
    assert made.size_bytes == 11
    copy = path.with_name("copy.txt")
    copy.write_bytes(path.read_bytes())
    assert identify(copy, MemoryStore()).fingerprint == made.fingerprint
    rewrite(path, b"hello w0rld")
    assert identify(path, MemoryStore()).fingerprint != made.fingerprint


def test_an_unchanged_file_is_read_once(path: Path, hashed: list[Path]) -> None:
    memory = MemoryStore()
    first = identify(path, memory)
    assert identify(path, memory) == first
    assert hashed == [path]


def test_a_stamp_that_is_still_young_is_not_trusted(
    path: Path, hashed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "STAMP_SETTLES_NS", 3600 * 10**9)
    memory = MemoryStore()
    assert identify(path, memory) == identify(path, memory)
    assert hashed == [path, path]


def test_a_same_size_edit_with_its_time_put_back_is_noticed(path: Path, hashed: list[Path]) -> None:
    memory = MemoryStore()
    before = identify(path, memory)
    rewrite(path, b"HELLO WORLD")
    after = identify(path, memory)
    assert after.fingerprint != before.fingerprint
    assert len(hashed) == 2


@pytest.mark.parametrize("memory", [b"", b"[]", b"{}", b'{"version": 1}', b"\xff"])
def test_a_memory_that_cannot_be_read_is_made_anew(
    path: Path, hashed: list[Path], memory: bytes
) -> None:
    store = MemoryStore()
    store.create("source.json", memory)
    first = identify(path, store)
    assert identify(path, store) == first
    assert hashed == [path]
    assert json.loads(store.read("source.json"))["fingerprint"] == first.fingerprint


def test_who_only_asks_leaves_no_memory(path: Path) -> None:
    memory = MemoryStore()
    identify(path, memory, remember=False)
    assert list(memory.list("")) == []


def test_a_file_written_to_while_it_is_read_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(path: Path) -> str:
        found = content_hash(path)
        path.write_bytes(b"more than before")
        return found

    monkeypatch.setattr(source_module, "content_hash", slowly)
    memory = MemoryStore()
    with pytest.raises(SourceChanged, match="while it was being read") as caught:
        identify(path, memory)
    assert caught.value.remedy
    assert list(memory.list("")) == [], "a hash of neither content is not remembered"


@pytest.mark.parametrize("call", [signature, content_hash])
def test_what_cannot_be_read_is_named(tmp_path: Path, call: object) -> None:
    with pytest.raises(SourceError, match=r"gone\.txt cannot be read") as caught:
        call(tmp_path / "gone.txt")  # type: ignore[operator]
    assert caught.value.remedy


def test_an_unchanged_source_passes_without_a_read(path: Path, hashed: list[Path]) -> None:
    made = identify(path, MemoryStore())
    check = SourceCheck()
    hashed.clear()
    check(made)
    check(made)
    assert hashed == []


def test_a_touched_source_with_the_same_content_passes_after_one_read(
    path: Path, hashed: list[Path]
) -> None:
    made = identify(path, MemoryStore())
    rewrite(path, path.read_bytes())
    check = SourceCheck()
    hashed.clear()
    check(made)
    check(made)
    assert hashed == [path]


def test_a_source_with_another_content_stops_the_task(path: Path) -> None:
    made = identify(path, MemoryStore())
    check = SourceCheck()
    check(made)
    rewrite(path, b"HELLO WORLD")
    with pytest.raises(SourceChanged, match="not the file this job was planned for") as caught:
        check(made)
    assert caught.value.remedy
    assert not caught.value.retryable


def test_one_good_content_does_not_excuse_another_source(path: Path) -> None:
    made = identify(path, MemoryStore())
    check = SourceCheck()
    rewrite(path, path.read_bytes())
    check(made)
    with pytest.raises(SourceChanged):
        check(replace(made, fingerprint="another", version="another"))


def test_a_source_elsewhere_is_not_looked_at_here() -> None:
    SourceCheck()(Source("s3://bucket/talk.mp4", "f"))
