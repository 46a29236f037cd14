"""The scratch of a machine: fetched once, within its bound, and nothing left of the dead."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Barrier, Thread

import pytest

from intermission.backends.store.memory import MemoryStore
from intermission.engine.receipt import adopt, commit, fetch_file
from intermission.model import FileRef, Receipt
from intermission.scratch import Scratch, holding

TIMEOUT_S = 100.0


class Elsewhere:
    """Files of ten bytes each, and how often each was fetched."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.fetched: list[str] = []

    def get(self, key: str, size_bytes: int = 10) -> Path:
        def fetch(to: Path) -> None:
            self.fetched.append(key)
            to.write_bytes(b"x" * size_bytes)

        return Scratch(self.scratch).file(key, "a.bin", size_bytes, fetch)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Elsewhere:
    Scratch(tmp_path / "scratch").limit(35)
    return Elsewhere(tmp_path / "scratch")


def kept(elsewhere: Elsewhere) -> set[str]:
    return {path.parent.name for path in elsewhere.scratch.glob("entries/*/a.bin")}


def test_the_bound_holds_and_what_was_used_last_stays(elsewhere: Elsewhere) -> None:
    for key in "abcdefgh":
        with holding():
            elsewhere.get("often")
            elsewhere.get(key)
        assert Scratch(elsewhere.scratch).used_bytes() <= 35
    assert kept(elsewhere) == {"often", "g", "h"}
    assert elsewhere.fetched.count("often") == 1


def test_what_was_evicted_is_fetched_again(elsewhere: Elsewhere) -> None:
    for key in ("a", "b", "c", "d", "a"):
        assert elsewhere.get(key).read_bytes() == b"x" * 10
    assert elsewhere.fetched == ["a", "b", "c", "d", "a"]


def test_nothing_goes_while_it_is_used(elsewhere: Elsewhere) -> None:
    with holding():
        paths = [elsewhere.get(key) for key in "abcdef"]
        assert all(path.exists() for path in paths), "what is used may exceed the bound"
        other = Thread(target=lambda: elsewhere.get("z"))
        other.start()
        other.join(TIMEOUT_S)
        assert all(path.exists() for path in paths)
    assert Scratch(elsewhere.scratch).used_bytes() <= 35


def test_two_who_want_it_at_once_fetch_it_once(elsewhere: Elsewhere) -> None:
    barrier = Barrier(4)

    def want() -> None:
        barrier.wait(TIMEOUT_S)
        with holding():
            assert elsewhere.get("a").read_bytes() == b"x" * 10

    threads = [Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert elsewhere.fetched == ["a"]


def test_a_torn_copy_is_fetched_again(elsewhere: Elsewhere) -> None:
    path = elsewhere.get("a")
    path.chmod(0o644)
    path.write_bytes(b"xx")
    assert elsewhere.get("a").read_bytes() == b"x" * 10


def test_a_fetch_that_failed_leaves_no_copy(elsewhere: Elsewhere) -> None:
    def fail(to: Path) -> None:
        to.write_bytes(b"half")
        raise ValueError("the line broke")

    with pytest.raises(ValueError, match="the line broke"):
        Scratch(elsewhere.scratch).file("a", "a.bin", 10, fail)
    assert kept(elsewhere) == set()
    assert elsewhere.get("a").read_bytes() == b"x" * 10


def test_without_a_bound_it_is_a_share_of_the_disk(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    Scratch(scratch).limit(None)
    elsewhere = Elsewhere(scratch)
    for key in "abcdef":
        elsewhere.get(key)
    assert len(kept(elsewhere)) == 6


def _hold(scratch: Path, said: Connection) -> None:
    with holding():
        Elsewhere(scratch).get("a")
        folder = Scratch(scratch).attempt("00001-abc")
        folder.mkdir(parents=True)
        (folder / "half.mp4").write_bytes(b"x" * 10)
        said.send(str(folder))
        said.recv()


@contextmanager
def holder(scratch: Path) -> Iterator[tuple[int, Path]]:
    """A process that uses a copy and has an attempt's folder."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_hold, args=(scratch, there))
    process.start()
    assert here.poll(TIMEOUT_S)
    folder = Path(here.recv())
    assert process.pid is not None
    try:
        yield process.pid, folder
    finally:
        process.kill()
        process.join(TIMEOUT_S)


def test_what_a_killed_task_left_goes_with_the_next_one(elsewhere: Elsewhere) -> None:
    with holder(elsewhere.scratch) as (pid, folder):
        Scratch(elsewhere.scratch).clean()
        for key in "bcd":
            elsewhere.get(key)
        assert folder.exists(), "it lives"
        assert "a" in kept(elsewhere), "it is used"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for key in "ef":
            elsewhere.get(key)
        assert not folder.exists()
        assert "a" not in kept(elsewhere)
        assert list(elsewhere.scratch.glob("tasks/*")) == []


def test_an_attempts_folder_goes_with_its_task(elsewhere: Elsewhere) -> None:
    with holding():
        folder = Scratch(elsewhere.scratch).attempt("00001-abc")
        folder.mkdir(parents=True)
    assert not folder.exists()
    assert list(elsewhere.scratch.glob("tasks/*")) == []


def artifact(store: MemoryStore, data: bytes) -> FileRef:
    stat = store.create("artifacts/s/k/1/a.bin", data)
    return FileRef("a.bin", stat.key, len(data), hashlib.sha256(data).hexdigest())


def test_an_altered_copy_is_noticed_when_a_receipt_is_adopted(tmp_path: Path) -> None:
    """A copy proves nothing of the store: what others are to believe is looked at there."""
    store = MemoryStore()
    ref = artifact(store, b"right")
    commit(store, Receipt("k", "s", 1, "1", 1, "1", (ref,)))
    path = fetch_file(store, ref, tmp_path)
    path.chmod(0o644)
    path.write_bytes(b"wrong")
    assert adopt(store, "s", "k", tmp_path) is not None
    assert fetch_file(store, ref, tmp_path).read_bytes() == b"right"
    store.delete(ref.key)
    assert adopt(store, "s", "k", tmp_path) is None
