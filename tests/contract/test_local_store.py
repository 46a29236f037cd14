"""What only the local store promises: links, folders, versions, the verified fetch in place."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path

import pytest

from intermission.backends.store import local
from intermission.backends.store.local import LocalStore
from intermission.errors import AlreadyExists, CorruptArtifact, NotFound, StoreError

BODY = b"artifact" * 1000
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "workspace" / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


def fetch(store: LocalStore, key: str) -> Path:
    return store.fetch(key, Path("/never/used"), size_bytes=len(BODY), sha256=SHA256)


def test_only_a_write_makes_the_root(store: LocalStore, root: Path) -> None:
    assert list(store.list("")) == []
    store.delete("a")
    assert not root.exists()
    store.create("a", b"")
    assert sorted(path.name for path in root.iterdir()) == [".tmp", "a"]


def test_no_temporary_file_is_left(store: LocalStore, root: Path) -> None:
    store.create("a", BODY)
    with pytest.raises(AlreadyExists):
        store.create("a", BODY)
    version = store.replace("a", BODY).version
    store.replace("a", BODY)
    with pytest.raises(AlreadyExists):
        store.replace("a", BODY, if_version=version)
    assert [path.name for path in (root / ".tmp").iterdir()] == ["lock"]


def test_a_fetch_is_the_stores_own_file(store: LocalStore, root: Path) -> None:
    store.create("a/b", BODY)
    assert fetch(store, "a/b") == root / "a" / "b" == store.local_path("a/b")


def test_an_unchanged_file_is_hashed_once(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[object] = []

    def digest(file: object, name: str) -> object:
        hashed.append(file)
        return file_digest(file, name)  # pyright: ignore[reportArgumentType]

    file_digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", digest)
    store.create("a", BODY)
    fetch(store, "a")
    fetch(store, "a")
    assert len(hashed) == 2, "a stamp this young proves nothing"
    monkeypatch.setattr(local, "_STAMP_SETTLES_NS", -1)
    for _ in range(5):
        fetch(store, "a")
    assert len(hashed) == 3
    os.utime(store.local_path("a"))
    fetch(store, "a")
    assert len(hashed) == 4
    store.replace("a", BODY[1:])
    with pytest.raises(CorruptArtifact, match=f"found {len(BODY) - 1} bytes"):
        fetch(store, "a")
    assert len(hashed) == 4, "the size alone tells"


def test_a_byte_flipped_under_a_restored_time_is_found(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_STAMP_SETTLES_NS", -1)
    store.create("a", BODY)
    path = fetch(store, "a")
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"X")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CorruptArtifact) as caught:
        fetch(store, "a")
    assert SHA256 in caught.value.message


def test_a_folder_that_is_a_link_is_never_followed(
    store: LocalStore, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(BODY)
    store.create("a/b", b"")
    (root / "a" / "link").symlink_to(outside)
    for call in (
        lambda: store.create("a/link/new", b""),
        lambda: store.create("a/link/deep/new", b""),
        lambda: store.create("a/link/secret", root / "a" / "link" / "secret"),
        lambda: store.replace("a/link/secret", b""),
        lambda: store.read("a/link/secret"),
        lambda: fetch(store, "a/link/secret"),
        lambda: store.stat("a/link/secret"),
        lambda: store.move("a/link/secret", "c"),
        lambda: store.move("a/b", "a/link/b"),
        lambda: store.delete("a/link/secret"),
        lambda: list(store.list("a/link/")),
    ):
        with pytest.raises(StoreError, match="symbolic link") as caught:
            call()
        assert caught.value.remedy
    assert [one.key for one in store.list("")] == ["a/b"]
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_a_link_or_a_pipe_is_no_object(store: LocalStore, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(BODY)
    store.create("a", b"")
    (root / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(root / "pipe")
    for key in ("link", "pipe"):
        assert store.stat(key) is None
        with pytest.raises(NotFound):
            store.read(key)
        with pytest.raises(CorruptArtifact):
            fetch(store, key)
        with pytest.raises(StoreError, match="finished file"):
            store.create(key, root / key)
        store.delete(key)
        assert os.path.lexists(root / key)
    assert [one.key for one in store.list("")] == ["a"]


def test_a_key_is_an_object_or_a_folder(store: LocalStore) -> None:
    store.create("a/b", b"")
    for call in (
        lambda: store.create("a", b""),
        lambda: store.replace("a", b""),
        lambda: store.create("a/b/c", b""),
        lambda: store.replace("a/b/c", b""),
    ):
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.remedy
    assert [one.key for one in store.list("")] == ["a/b"]


def test_folders_are_pruned_up_to_the_root(store: LocalStore, root: Path) -> None:
    for key in ("a/b/c/d", "a/x"):
        store.create(key, b"")
    store.delete("a/b/c/d")
    assert not (root / "a" / "b").exists()
    store.move("a/x", "y")
    assert not (root / "a").exists()
    store.delete("y")
    assert root.is_dir()


def test_folders_removed_by_others_are_made_again(store: LocalStore, root: Path) -> None:
    store.create("a/b/c", b"")
    shutil.rmtree(root / "a")
    store.create("a/b/c", b"again")
    shutil.rmtree(root)
    store.replace("a/b/c", b"and again")
    shutil.rmtree(root / ".tmp")
    store.move("a/b/c", "d/e")
    assert store.read("d/e") == b"and again"


def test_a_creator_is_never_given_the_version_of_its_successor(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that is stolen at once must not look renewable to whoever took it first."""
    discard = local.discard  # pyright: ignore[reportPrivateImportUsage]

    def discard_late(path: str) -> None:
        monkeypatch.setattr(local, "discard", discard)
        discard(path)
        LocalStore(root).replace("lock", b"thief")

    monkeypatch.setattr(local, "discard", discard_late)
    mine = store.create("lock", b"owner")
    with pytest.raises(AlreadyExists):
        store.replace("lock", b"owner", if_version=mine.version)
    assert store.read("lock") == b"thief"


def test_the_self_test_sweeps_what_was_left_over_a_day_ago(store: LocalStore, root: Path) -> None:
    store.replace("a", b"")
    temp = root / ".tmp"
    old_s = time.time() - 25 * 3600
    for name in ("old", "young"):
        (temp / name).write_bytes(b"half")
    assert [one.key for one in store.list("")] == ["a"]
    os.utime(temp / "old", (old_s, old_s))
    os.utime(temp / "lock", (old_s, old_s))
    store.self_test()
    assert sorted(path.name for path in temp.iterdir()) == ["lock", "young"]
    assert [one.key for one in store.list("")] == ["a"]


def test_files_of_foreign_names_are_not_listed(store: LocalStore, root: Path) -> None:
    store.create("a", b"")
    Path(os.fsdecode(os.fsencode(root) + b"/\xff")).write_bytes(b"")
    (root / "back\\slash").write_bytes(b"")
    assert [one.key for one in store.list("")] == ["a"]


def test_a_presigned_url_is_a_file_uri(store: LocalStore, root: Path) -> None:
    store.create("a b", b"")
    assert store.presign("a b", expires_s=1) == (root / "a b").as_uri()
    assert store.uri == root.as_uri()


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError) as caught:
        LocalStore(tmp_path / "file").create("a", b"")
    assert caught.value.exit_code == 4
    assert caught.value.remedy


def test_a_file_in_place_is_known_through_a_linked_root(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    (tmp_path / "link" / "a").write_bytes(BODY)
    assert LocalStore(tmp_path / "link").create("a", tmp_path / "link" / "a").size_bytes
    assert LocalStore(tmp_path / "disk").create("a", tmp_path / "link" / "a").size_bytes
