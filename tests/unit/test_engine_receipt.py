"""Receipts: the first one stands, everyone else adopts it, and only its bytes decide."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from intermission.backends.store.memory import MemoryStore
from intermission.engine.receipt import (
    adopt,
    attempt_prefix,
    commit,
    fetch_file,
    fetched_files,
    find,
    is_there,
    new_attempt,
    peek,
    quarantine,
    receipt_key,
    withdraw,
)
from intermission.errors import CorruptArtifact
from intermission.model import FileRef, Output, Receipt
from intermission.telemetry import listen

KEY = receipt_key("hear", "k1")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def receipt(attempt: str = "00001-a", files: tuple[FileRef, ...] = ()) -> Receipt:
    return Receipt("k1", "hear", 1, attempt, 1, '"words"', files)


def file(store: MemoryStore, attempt: str, data: bytes = b"words", name: str = "w.txt") -> FileRef:
    key = f"{attempt_prefix('hear', 'k1', attempt)}/{name}"
    store.create(key, data)
    return FileRef(name, key, len(data), hashlib.sha256(data).hexdigest())


def put_away(store: MemoryStore) -> list[str]:
    return sorted(stat.key.split("/", 2)[2] for stat in store.list("quarantine/"))


def during(point: str, act: Callable[[], None]) -> Callable[[str], None]:
    """Do something once, when a fault point is passed."""
    left = [act]

    def passing(name: str) -> None:
        if name == point and left:
            left.pop()()

    return passing


def test_the_first_receipt_stands_and_the_second_adopts_it(store: MemoryStore) -> None:
    assert commit(store, receipt("00001-a")) == (receipt("00001-a"), True)
    assert commit(store, receipt("00002-b")) == (receipt("00001-a"), False)
    assert find(store, "hear", "k1") == receipt("00001-a")


def test_a_repeated_commit_wins_against_itself(store: MemoryStore) -> None:
    commit(store, receipt())
    assert commit(store, receipt()) == (receipt(), True)


@pytest.mark.parametrize(
    "garbage",
    [
        b"{}",
        b"\xff",
        b"[1]",
        receipt().to_json().encode()[:-9],
        Receipt("other", "hear", 1, "00001-a", 1, "1").to_json().encode(),
        Receipt("k1", "other", 1, "00001-a", 1, "1").to_json().encode(),
    ],
)
def test_what_is_no_receipt_of_this_task_gives_way(store: MemoryStore, garbage: bytes) -> None:
    store.create(KEY, garbage)
    assert peek(store, "hear", "k1") is None
    assert store.read(KEY) == garbage, "who only looks changes nothing"
    assert commit(store, receipt()) == (receipt(), True)
    assert put_away(store) == [KEY]


def test_a_task_without_a_receipt_has_none(store: MemoryStore, tmp_path: Path) -> None:
    assert find(store, "hear", "k1") is None
    assert peek(store, "hear", "k1") is None
    assert adopt(store, "hear", "k1", tmp_path) is None
    assert list(store.list("")) == []


def test_a_sound_receipt_is_adopted(store: MemoryStore, tmp_path: Path) -> None:
    made = receipt(files=(file(store, "00001-a"),))
    commit(store, made)
    assert adopt(store, "hear", "k1", tmp_path) == made
    assert put_away(store) == []


@pytest.mark.parametrize("loss", ["altered", "shorter", "gone"])
def test_an_unsound_receipt_is_put_away_with_its_file(
    store: MemoryStore, tmp_path: Path, loss: str
) -> None:
    good, bad = file(store, "00001-a", name="good.txt"), file(store, "00001-a", name="lost.txt")
    commit(store, receipt(files=(good, bad)))
    if loss == "gone":
        store.delete(bad.key)
    else:
        store.replace(bad.key, b"WORDS" if loss == "altered" else b"wor")
    assert adopt(store, "hear", "k1", tmp_path) is None
    assert put_away(store) == ([KEY] if loss == "gone" else sorted([bad.key, KEY]))
    assert store.stat(good.key) is not None
    assert commit(store, receipt("00002-b")) == (receipt("00002-b"), True)


def test_who_finds_a_receipt_unsound_adopts_the_one_that_came_since(
    store: MemoryStore, tmp_path: Path
) -> None:
    """The task was finished again while this attempt was about to put the old receipt away."""
    lost = file(store, "00001-a")
    commit(store, receipt("00001-a", (lost,)))
    store.delete(lost.key)

    def finish_again() -> None:
        withdraw(store, KEY, store.read(KEY))
        commit(store, receipt("00002-b"))

    with listen(during("mid-quarantine", finish_again)):
        assert adopt(store, "hear", "k1", tmp_path) == receipt("00002-b")
    assert find(store, "hear", "k1") == receipt("00002-b")


def test_a_withdrawal_takes_only_the_receipt_it_judged(store: MemoryStore) -> None:
    judged, other = (receipt(attempt).to_json().encode() for attempt in ("00001-a", "00002-b"))
    withdraw(store, KEY, judged)
    store.create(KEY, other)
    withdraw(store, KEY, judged)
    assert store.read(KEY) == other
    withdraw(store, KEY, other)
    assert find(store, "hear", "k1") is None
    assert not is_there(store, "hear", "k1")
    assert put_away(store) == [KEY]


def test_a_withdrawal_that_comes_late_finds_another_version(store: MemoryStore) -> None:
    judged = receipt().to_json().encode()
    store.create(KEY, judged)
    read = store.read

    def read_slowly(key: str) -> bytes:
        data = read(key)
        store.delete(key)
        store.create(key, data)  # equal bytes, but not the object that was judged
        return data

    store.read = read_slowly  # type: ignore[method-assign]
    withdraw(store, KEY, judged)
    assert is_there(store, "hear", "k1")


def test_quarantine_loses_nothing_and_minds_nothing_missing(store: MemoryStore) -> None:
    for _ in range(2):
        store.create("a/b", b"kept")
        quarantine(store, ["a/b", "not/there"])
    assert put_away(store) == ["a/b", "a/b"]
    assert {store.read(stat.key) for stat in store.list("quarantine/")} == {b"kept"}


def test_no_two_attempts_share_a_folder() -> None:
    attempts = {new_attempt(1) for _ in range(100)}
    assert len(attempts) == 100
    assert all(attempt.startswith("00001-") for attempt in attempts)
    assert attempt_prefix("hear", "k1", "00001-a") == "artifacts/hear/k1/00001-a"


def test_files_are_fetched_by_name_and_checked(store: MemoryStore, tmp_path: Path) -> None:
    one = file(store, "00001-a", b"one", "folder/one.txt")
    two = file(store, "00001-a", b"two", "two.txt")
    paths = dict(fetched_files(store, Output("k1", "1", (one, two)), tmp_path))
    assert {name: path.read_bytes() for name, path in paths.items()} == {
        "folder/one.txt": b"one",
        "two.txt": b"two",
    }
    assert paths["folder/one.txt"].name == "one.txt"
    assert fetch_file(store, two, tmp_path) == paths["two.txt"]


def test_a_lost_file_is_told_with_the_task_that_made_it(store: MemoryStore, tmp_path: Path) -> None:
    lost = file(store, "00001-a")
    store.replace(lost.key, b"WORDS")
    with pytest.raises(CorruptArtifact) as caught:
        dict(fetched_files(store, Output("k1", "1", (lost,)), tmp_path))
    assert (caught.value.task_key, caught.value.key) == ("k1", lost.key)
    assert lost.sha256 in str(caught.value)
    assert caught.value.remedy
