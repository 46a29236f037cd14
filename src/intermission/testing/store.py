"""`StoreContract`: what every store must do, as a pytest class.

    class TestMyStore(StoreContract):
        def open_store(self, folder: Path) -> Store:
            return MyStore(...)

Every test gets a new, empty store. The suite asks only what the port promises: how an object
is kept, and what survives a power loss, is for the backend's own tests.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from intermission.errors import (
    AlreadyExists,
    CorruptArtifact,
    NotFound,
    StoreError,
    UsageError,
)
from intermission.ports.store import Store

T = TypeVar("T")

BAD_KEYS = ["", "/", "/a", "a/", "a//b", ".", "..", "./a", "../a", "a/.", "a/..", "a/../b"]
BAD_KEYS += ["a\\b", "..\\a", ".tmp", ".tmp/a", "a\0b", "a\ud800b"]
BAD_KEYS += ["a" * 256, "é" * 128, "/".join(["abc"] * 257)]

ODD_KEYS = ["a", ".hidden", "a/.tmp/b", "...", "a/b.c/d-e_f", "-rf", "~", "100%/%2e%2e", "q?x=1#y"]
ODD_KEYS += ["a b", "new\nline", "новости/日本語/🎬.json", "e\u0301 and \u00e9"]
ODD_KEYS += ["a" * 255, "/".join(["deep"] * 100)]


class StoreContract:
    """Override `open_store`, and pytest runs every check on your store."""

    WRITERS = 16

    def open_store(self, folder: Path) -> Store:
        """A new, empty store; `folder` does not exist yet and is free to use."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return self.open_store(tmp_path / "store")

    def test_what_is_created_is_read_back(self, store: Store) -> None:
        made = store.create("receipts/one.json", b"{}")
        assert (made.key, made.size_bytes) == ("receipts/one.json", 2)
        assert store.read("receipts/one.json") == b"{}"
        assert store.stat("receipts/one.json") == made

    def test_a_range_is_read_alone(self, store: Store) -> None:
        store.create("artifacts/one", bytes(range(200)))
        assert store.read_range("artifacts/one", 0, 1) == b"\x00"
        assert store.read_range("artifacts/one", 10, 5) == bytes(range(10, 15))
        assert store.read_range("artifacts/one", 0, 200) == bytes(range(200))
        assert store.read_range("artifacts/one", 199, 1) == bytes([199])
        with pytest.raises(StoreError):
            store.read_range("artifacts/one", 190, 20)
        with pytest.raises(NotFound):
            store.read_range("artifacts/none", 0, 1)

    def test_an_object_may_be_empty(self, store: Store, tmp_path: Path) -> None:
        assert store.create("empty", b"").size_bytes == 0
        assert store.read("empty") == b""
        assert [found.key for found in store.list("")] == ["empty"]
        path = store.fetch("empty", tmp_path / "to", size_bytes=0, sha256=_sha256(b""))
        assert path.read_bytes() == b""

    def test_a_second_create_is_refused_and_the_first_stands(self, store: Store) -> None:
        first = store.create("key", b"first")
        with pytest.raises(AlreadyExists, match="key"):
            store.create("key", b"second")
        assert store.read("key") == b"first"
        assert store.stat("key") == first

    def test_a_second_create_of_the_same_bytes_is_refused(self, store: Store) -> None:
        store.create("key", b"same")
        with pytest.raises(AlreadyExists):
            store.create("key", b"same")

    def test_a_deleted_key_can_be_created_again(self, store: Store) -> None:
        store.create("a/b", b"1")
        store.delete("a/b")
        store.create("a/b", b"2")
        assert store.read("a/b") == b"2"

    def test_of_many_creators_exactly_one_wins(self, store: Store) -> None:
        for turn in range(8):
            key = f"race/{turn}"
            bodies = [f"{n}:".encode() * 2000 for n in range(self.WRITERS)]

            def create(body: bytes, key: str = key) -> bytes | None:
                try:
                    store.create(key, body)
                except AlreadyExists:
                    return None
                return body

            won = [body for body in _at_once(create, bodies) if body is not None]
            assert len(won) == 1, f"{len(won)} creators of {key} were told they won"
            assert store.read(key) == won[0]

    def test_creators_and_deleters_do_not_disturb_their_neighbours(self, store: Store) -> None:
        def come_and_go(name: str) -> None:
            for turn in range(10):
                store.create(f"shared/folder/{name}", b"%d" % turn)
                assert store.read(f"shared/folder/{name}") == b"%d" % turn
                store.delete(f"shared/folder/{name}")

        _at_once(come_and_go, list("abcd"))
        assert list(store.list("")) == []

    def test_a_large_file_is_created_from_its_path(self, store: Store, tmp_path: Path) -> None:
        body = random.Random(1).randbytes(5_000_001)
        source = tmp_path / "large.bin"
        source.write_bytes(body)
        assert store.create("large", source).size_bytes == len(body)
        assert source.read_bytes() == body, "the file given is left as it was"
        path = store.fetch("large", tmp_path / "to", size_bytes=len(body), sha256=_sha256(body))
        assert path.read_bytes() == body
        with pytest.raises(AlreadyExists):
            store.create("large", source)

    def test_a_file_that_is_not_there_cannot_be_created(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(StoreError) as caught:
            store.create("key", tmp_path / "nowhere")
        assert caught.value.remedy
        assert store.stat("key") is None

    def test_a_file_at_its_local_path_is_adopted(self, store: Store) -> None:
        path = store.local_path("attempts/1/out.bin")
        if path is None:
            return
        path.parent.mkdir(parents=True)
        path.write_bytes(b"written in place")
        assert store.create("attempts/1/out.bin", path).size_bytes == 16
        assert store.read("attempts/1/out.bin") == b"written in place"
        assert [found.key for found in store.list("")] == ["attempts/1/out.bin"]

    def test_replace_writes_whether_or_not_the_object_exists(
        self, store: Store, tmp_path: Path
    ) -> None:
        first = store.replace("a/key", b"one")
        assert store.stat("a/key") == first
        source = tmp_path / "two"
        source.write_bytes(b"twofold")
        second = store.replace("a/key", source)
        assert store.stat("a/key") == second
        assert (second.size_bytes, store.read("a/key")) == (7, b"twofold")
        assert first.version != second.version

    def test_every_write_of_equal_size_has_another_version(self, store: Store) -> None:
        versions = [store.create("key", b"%4d" % 0).version]
        versions += [store.replace("key", b"%4d" % n).version for n in range(1, 40)]
        assert len(set(versions)) == len(versions)

    def test_replace_if_version_takes_only_that_version(self, store: Store) -> None:
        first = store.create("lock", b"1")
        second = store.replace("lock", b"2", if_version=first.version)
        with pytest.raises(AlreadyExists, match="lock"):
            store.replace("lock", b"3", if_version=first.version)
        assert store.read("lock") == b"2"
        store.replace("lock", b"4", if_version=second.version)
        assert store.read("lock") == b"4"

    def test_replace_if_version_refuses_a_missing_object(self, store: Store) -> None:
        version = store.create("lock", b"1").version
        store.delete("lock")
        with pytest.raises(AlreadyExists):
            store.replace("lock", b"2", if_version=version)
        assert store.stat("lock") is None

    def test_no_update_by_version_is_lost(self, store: Store) -> None:
        store.create("counter", b"0")

        def add_ten(_: int) -> None:
            added = 0
            while added < 10:
                found = store.stat("counter")
                assert found is not None
                count = int(store.read("counter"))
                try:
                    store.replace("counter", b"%d" % (count + 1), if_version=found.version)
                except AlreadyExists:
                    continue
                added += 1

        _at_once(add_ten, list(range(4)))
        assert store.read("counter") == b"40"

    def test_readers_see_the_old_or_the_new_whole(self, store: Store) -> None:
        bodies = (b"a" * 300_000, b"b" * 200_000)
        store.create("key", bodies[0])
        done = threading.Event()

        def write() -> None:
            try:
                for turn in range(30):
                    store.replace("key", bodies[turn % 2])
            finally:
                done.set()

        def read() -> None:
            while not done.is_set():
                assert store.read("key") in bodies

        _at_once(lambda act: act(), [write, read, read])

    def test_a_missing_object_is_not_found(self, store: Store) -> None:
        store.create("a/b", b"")
        for key in ("nothing", "a", "a/b/c", "a/bb"):
            assert store.stat(key) is None
            with pytest.raises(NotFound, match=key):
                store.read(key)

    def test_fetch_refuses_altered_truncated_extended_and_missing_bytes(
        self, store: Store, tmp_path: Path
    ) -> None:
        body = random.Random(2).randbytes(100_000)
        flipped = body[:50_000] + bytes([body[50_000] ^ 1]) + body[50_001:]
        to = tmp_path / "to"

        def fetch() -> bytes:
            path = store.fetch("f", to, size_bytes=len(body), sha256=_sha256(body))
            return path.read_bytes()

        store.create("f", body)
        assert fetch() == body
        for damaged in (flipped, body[:-1], body + b"\0", b""):
            store.replace("f", damaged)
            with pytest.raises(CorruptArtifact) as caught:
                fetch()
            assert (caught.value.key, caught.value.task_key) == ("f", "")
        store.delete("f")
        with pytest.raises(CorruptArtifact):
            fetch()
        store.create("f", body)
        assert fetch() == body

    def test_list_is_in_the_byte_order_of_whole_keys(self, store: Store) -> None:
        keys = ["a/b", "a-b", "a.b", "a0", "aa/x", "A", "a/b-c/d", "a/b.c", "é", "z", "日", "🎬/x"]
        keys += ["a!/x", "a/ b", "\uffee"]
        for key in random.Random(3).sample(keys, len(keys)):
            store.create(key, key.encode())
        found = list(store.list(""))
        assert [one.key for one in found] == sorted(keys, key=str.encode)
        assert all(one == store.stat(one.key) for one in found)

    def test_a_prefix_need_not_end_at_a_slash(self, store: Store) -> None:
        keys = ["ab/c", "ab/cd/e", "ab/d", "abc", "b/ab"]
        for key in keys:
            store.create(key, b"")
        for prefix in (
            "",
            "a",
            "ab",
            "ab/",
            "ab/c",
            "ab/cd/",
            "ab/cd/e",
            "abc",
            "x",
            "abc/",
            "b/ab/",
        ):
            found = [one.key for one in store.list(prefix)]
            assert found == [key for key in keys if key.startswith(prefix)], prefix

    def test_what_is_listed_may_be_deleted_meanwhile(self, store: Store) -> None:
        keys = [f"{a}/{b}" for a in "abc" for b in "xyz"]
        for key in keys:
            store.create(key, b"")
        listed: list[str] = []
        for found in store.list(""):
            listed.append(found.key)
            store.delete(found.key)
        assert listed == keys
        assert list(store.list("")) == []

    def test_an_empty_store_answers(self, store: Store) -> None:
        assert list(store.list("")) == []
        assert list(store.list("a/b")) == []
        assert store.stat("a") is None
        store.delete("a")
        with pytest.raises(NotFound):
            store.read("a")
        with pytest.raises(NotFound):
            store.move("a", "b")

    def test_move_is_a_rename_that_can_be_repeated(self, store: Store) -> None:
        store.create("tasks/a.json", b"body")
        for _ in range(2):
            store.move("tasks/a.json", "quarantine/tasks/a.json")
            assert [one.key for one in store.list("")] == ["quarantine/tasks/a.json"]
            assert store.read("quarantine/tasks/a.json") == b"body"

    def test_a_move_cut_short_is_finished_by_its_repeat(self, store: Store) -> None:
        store.create("a", b"body")
        store.create("b", b"body")
        store.move("a", "b")
        assert [one.key for one in store.list("")] == ["b"]
        assert store.read("b") == b"body"

    def test_move_needs_one_of_the_two(self, store: Store) -> None:
        store.create("other", b"")
        with pytest.raises(NotFound, match="a"):
            store.move("a", "b")
        assert [one.key for one in store.list("")] == ["other"]

    def test_delete_can_be_repeated_and_takes_only_its_key(self, store: Store) -> None:
        for key in ("a/b/c", "a/bb", "ab"):
            store.create(key, b"")
        for _ in range(2):
            store.delete("a/b/c")
            assert [one.key for one in store.list("")] == ["a/bb", "ab"]

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_odd_keys_are_kept_as_they_are(self, store: Store, key: str) -> None:
        store.create(key, b"odd")
        assert store.read(key) == b"odd"
        assert [one.key for one in store.list("")] == [key]
        assert [one.key for one in store.list(key)] == [key]
        assert store.presign(key, expires_s=60)
        store.move(key, "plain")
        assert [one.key for one in store.list("")] == ["plain"]

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_bad_keys_are_refused_everywhere(self, store: Store, tmp_path: Path, key: str) -> None:
        store.create("good", b"")
        calls: list[Callable[[], object]] = [
            lambda: store.create(key, b""),
            lambda: store.replace(key, b""),
            lambda: store.read(key),
            lambda: store.fetch(key, tmp_path / "to", size_bytes=0, sha256=_sha256(b"")),
            lambda: store.stat(key),
            lambda: store.move(key, "to"),
            lambda: store.move("good", key),
            lambda: store.delete(key),
            lambda: store.presign(key, expires_s=60),
            lambda: store.local_path(key),
        ]
        for call in calls:
            with pytest.raises(UsageError) as caught:
                call()
            assert caught.value.remedy
        assert [one.key for one in store.list("")] == ["good"]

    @pytest.mark.parametrize("prefix", ["/", "../", "a/../b", "a//", "./a", ".tmp/"])
    def test_bad_prefixes_are_refused(self, store: Store, prefix: str) -> None:
        with pytest.raises(UsageError):
            list(store.list(prefix))

    def test_a_presigned_url_names_the_object(self, store: Store) -> None:
        store.create("a/b.json", b"{}")
        url = store.presign("a/b.json", expires_s=60)
        assert ":" in url
        assert "a/b.json" in url

    def test_the_store_says_where_it_is(self, store: Store) -> None:
        assert ":" in store.uri

    def test_the_self_test_passes_and_leaves_nothing(self, store: Store) -> None:
        store.create("mine", b"")
        store.self_test()
        assert [one.key for one in store.list("")] == ["mine"]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _at_once(act: Callable[[T], object], items: list[T]) -> list[object]:
    """Run `act` on every item in a thread of its own, started together; raise what they raise."""
    barrier = threading.Barrier(len(items))

    def start(item: T) -> object:
        barrier.wait(timeout=30)
        return act(item)

    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(start, items))
