"""An errno at every system call of the local store's writes, and the order of its syncs."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from intermission.backends.store import fsync, local
from intermission.backends.store.local import LocalStore
from intermission.errors import (
    AlreadyExists,
    EnvironmentFault,
    LedgerError,
    StoreError,
    fault_from_os,
)

KEY = "tasks/ab/one.json"
OLD, NEW = b"old" * 1000, b"new!" * 1000
CALLS = ("open", "write", "readv", "utime", "fsync", "close", "link", "unlink", "replace")
CALLS += ("rename", "mkdir", "makedirs", "lstat")


class System:
    """Stands in for `os` in the store: records every call, and fails those it is told to.

    `fsync` only pretends, so that thousands of runs are quick. A failing `close` closes first,
    as the kernel does.
    """

    def __init__(self, fail_at: int = -1, code: int = 0, *, for_good: bool = False) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fail_at, self.code, self.for_good = fail_at, code, for_good
        self.short_bytes = 1 << 40

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._watched(name, real) if name in CALLS else real

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            index = len(self.calls)
            self.calls.append(
                (name, _path_of(args[1] if name in ("link", "replace", "rename") else args[0]))
            )
            if name == "close":
                real(*args)
            if index == self.fail_at or (self.for_good and index > self.fail_at >= 0):
                raise OSError(self.code, os.strerror(self.code))
            if name == "write":
                return real(args[0], args[1][: self.short_bytes])
            return None if name in ("close", "fsync") else real(*args, **kwargs)

        return call

    def flock(self, fd: int, how: int) -> None:
        self._watched("flock", fcntl.flock)(fd, how)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> System:
        monkeypatch.setattr(fsync, "os", self)
        monkeypatch.setattr(fsync, "_named", {})  # what other tests made durable counts for none
        monkeypatch.setattr(local, "os", self)
        monkeypatch.setattr(
            local, "fcntl", SimpleNamespace(flock=self.flock, LOCK_EX=fcntl.LOCK_EX)
        )
        return self

    def synced(self) -> list[str]:
        return [path for name, path in self.calls if name == "fsync"]


def _path_of(file: int | str | Path) -> str:
    return str(Path(f"/proc/self/fd/{file}").readlink() if isinstance(file, int) else file)


def _descriptors(below: Path) -> list[str]:
    """What is open below a folder; threads of other tests may open and close what they like."""
    links: list[str] = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            links.append(str(path.readlink()))
    return sorted(link for link in links if link.startswith(str(below)))


def create_bytes(root: Path) -> None:
    LocalStore(root).create(KEY, NEW)


def create_from_path(root: Path) -> None:
    LocalStore(root).create(KEY, root.parent / "new")


def create_in_place(root: Path) -> None:
    store = LocalStore(root)
    store.create(KEY, store.local_path(KEY))


def replace(root: Path) -> None:
    LocalStore(root).replace(KEY, NEW)


def replace_if_version(root: Path) -> None:
    store = LocalStore(root)
    found = store.stat(KEY)
    store.replace(KEY, NEW, if_version=found.version if found else None)


# Each write with the bytes that lie under its key before it, and those that may lie there after.
WRITES: list[tuple[Callable[[Path], None], bytes | None, set[bytes | None]]] = [
    (create_bytes, None, {None, NEW}),
    (create_from_path, None, {None, NEW}),
    (create_in_place, NEW, {NEW}),
    (replace, None, {None, NEW}),
    (replace_if_version, OLD, {OLD, NEW}),
]


def prepare(folder: Path, before: bytes | None) -> Path:
    folder.mkdir()
    (folder / "new").write_bytes(NEW)
    root = folder / "store"
    if before is not None:
        (root / KEY).parent.mkdir(parents=True)
        (root / KEY).write_bytes(before)
    return root


def found_in(root: Path) -> bytes | None:
    """What a store that works finds; also that nothing but the key is listed."""
    store = LocalStore(root)
    assert [one.key for one in store.list("")] in ([], [KEY])
    return store.read(KEY) if store.stat(KEY) else None


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EMFILE])
@pytest.mark.parametrize(("write", "before", "after"), WRITES)
def test_no_errno_anywhere_shows_a_wrong_object(
    write: Callable[[Path], None],
    before: bytes | None,
    after: set[bytes | None],
    code: int,
    for_good: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        whole = System().install(patched)
        write(prepare(tmp_path / "whole", before))
    assert whole.synced()
    for site, (name, _) in enumerate(whole.calls):
        root = prepare(tmp_path / str(site), before)
        descriptors = _descriptors(tmp_path)
        with monkeypatch.context() as patched:
            system = System(site, code, for_good=for_good).install(patched)
            error = _error(lambda root=root: write(root))
        where = f"{errno.errorcode[code]} at call {site}, {name}"
        assert system.calls[site][0] == name, f"{where} was not met"
        assert _descriptors(tmp_path) == descriptors, where
        assert found_in(root) in after, where
        later = [call for call, _ in system.calls[site + 1 :]]
        if error is None:
            # Only the temporary file's own removal may fail unheard: it is swept later.
            assert name == "unlink", where
            assert found_in(root) == NEW, where
        else:
            assert error.exit_code == 4
            assert error.remedy
            assert KEY in error.message
            assert "fsync" not in later, f"{where}: the sync was tried again"
        if not for_good and name != "unlink":
            assert _temporary(root) == [], where
        _finish(write, root, where)


def _error(write: Callable[[], None]) -> StoreError | None:
    try:
        write()
    except StoreError as e:
        return e
    return None


def _temporary(root: Path) -> list[str]:
    folder = root / ".tmp"
    return [path.name for path in folder.glob("*") if path.name != "lock"]


def _finish(write: Callable[[Path], None], root: Path, where: str) -> None:
    """Once the fault is gone the same write succeeds, or finds its own bytes there."""
    try:
        write(root)
    except AlreadyExists:
        assert write in (create_bytes, create_from_path), where
    assert found_in(root) == NEW, where


@pytest.mark.parametrize(("write", "before", "after"), WRITES)
def test_short_writes_are_continued(
    write: Callable[[Path], None],
    before: bytes | None,
    after: set[bytes | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = prepare(tmp_path / "a", before)
    with monkeypatch.context() as patched:
        system = System().install(patched)
        system.short_bytes = 7
        write(root)
    writes = [name for name, _ in system.calls].count("write")
    assert writes == (0 if write is create_in_place else -(-len(NEW) // 7))
    assert found_in(root) == NEW


def test_a_disk_that_fills_in_the_middle_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        whole = System().install(patched)
        create_bytes(prepare(tmp_path / "whole", None))
    first = [name for name, _ in whole.calls].index("write")
    root = prepare(tmp_path / "full", None)
    with monkeypatch.context() as patched:
        system = System(first + 3, errno.ENOSPC, for_good=False).install(patched)
        system.short_bytes = 100
        with pytest.raises(StoreError, match="is full"):
            create_bytes(root)
    assert found_in(root) is None
    assert _temporary(root) == []


def test_a_write_that_takes_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = prepare(tmp_path / "a", None)
    with monkeypatch.context() as patched:
        system = System().install(patched)
        system.short_bytes = 0
        with pytest.raises(StoreError):
            create_bytes(root)
    assert found_in(root) is None


def test_bytes_are_durable_before_the_name_and_the_name_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = prepare(tmp_path / "a", None)
    system = System().install(monkeypatch)
    create_bytes(root)
    (temp,) = [path for name, path in system.calls if name == "utime"]
    file = system.calls.index(("fsync", temp))
    link = system.calls.index(("link", str(root / KEY)))
    assert file < link
    assert ("fsync", str((root / KEY).parent)) in system.calls[link:]
    # Every folder that was made is named durably by the one above it before the link is.
    for folder in (root.parent, root, root / "tasks"):
        assert ("fsync", str(folder)) in system.calls[:link]


@pytest.mark.parametrize(
    ("change", "name", "folders"),
    [
        (lambda store: store.replace(KEY, NEW), "replace", ["tasks/ab"]),
        (lambda store: store.move(KEY, "q/1"), "rename", ["q", "tasks"]),
        (lambda store: store.delete(KEY), "unlink", ["tasks"]),
    ],
    ids=["replace", "move", "delete"],
)
def test_a_changed_name_is_durable_before_the_answer(
    change: Callable[[LocalStore], object],
    name: str,
    folders: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the folders that lost or gained it; for a folder that was pruned, in the one above."""
    root = prepare(tmp_path / "a", OLD)
    (root / "tasks" / "other").write_bytes(b"")
    system = System().install(monkeypatch)
    change(LocalStore(root))
    calls = [call for call, _ in system.calls]
    named = calls.index(name)
    assert "flock" in calls[:named], "nobody may change the object between a look and a replace"
    synced = [path for call, path in system.calls[named:] if call == "fsync"]
    assert synced == [str(root / folder) for folder in folders]


def test_folders_found_are_not_taken_to_be_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their maker may have been killed before its sync."""
    root = prepare(tmp_path / "a", NEW)
    system = System().install(monkeypatch)
    create_in_place(root)
    file, *folders = [root / KEY, *(root / KEY).parents]
    assert str(file) in system.synced()
    for folder in folders[:4]:
        assert str(folder) in system.synced()


def test_the_second_object_in_a_folder_costs_two_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = prepare(tmp_path / "a", None)
    store = LocalStore(root)
    store.create(KEY, NEW)
    system = System().install(monkeypatch)
    store.create(f"{KEY}.2", NEW)
    assert len(system.synced()) == 2
    assert len(system.calls) <= 13


def test_what_one_store_made_durable_another_knows_until_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System().install(monkeypatch)
    root = tmp_path / "above" / "a"
    LocalStore(root).create(KEY, NEW)
    system.calls.clear()
    LocalStore(root).create(f"{KEY}.2", NEW)
    assert len(system.synced()) == 2
    shutil.rmtree(tmp_path / "above")
    system.calls.clear()
    LocalStore(root).create(KEY, NEW)
    folders = {str(path) for path in (tmp_path, root.parent, root, root / "tasks")}
    assert folders <= set(system.synced())


def test_whoever_loses_sees_to_it_that_the_winner_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = prepare(tmp_path / "a", OLD)
    store = LocalStore(root)
    system = System().install(monkeypatch)
    with pytest.raises(AlreadyExists):
        store.create(KEY, NEW)
    assert system.synced()[-1] == str((root / KEY).parent)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_hard_links_is_named(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        whole = System().install(patched)
        create_bytes(prepare(tmp_path / "whole", None))
    link = [name for name, _ in whole.calls].index("link")
    root = prepare(tmp_path / "a", None)
    System(link, code).install(monkeypatch)
    with pytest.raises(StoreError, match="no hard links") as caught:
        create_bytes(root)
    assert "another file system" in caught.value.remedy


@pytest.mark.parametrize(
    ("code", "says", "remedy"),
    [
        (errno.ENOSPC, "the disk that holds /videos is full", "Free some space"),
        (errno.EDQUOT, "the disk quota for /videos is used up", "larger quota"),
        (errno.EROFS, "/videos is on a read-only file system", "Mount it writable"),
        (errno.EACCES, "this user may not do that in /videos", "Give yourself access"),
        (errno.EPERM, "this user may not do that in /videos", "Give yourself access"),
        (errno.EMFILE, "this process has too many files open", "ulimit -n"),
        (errno.ENFILE, "this machine has too many files open", "fs.file-max"),
        (errno.EIO, "the disk that holds /videos answered", "Check that disk"),
        (errno.ENAMETOOLONG, "file name too long (/videos/x)", "Put that right"),
    ],
)
def test_an_errno_becomes_a_sentence_with_a_remedy(code: int, says: str, remedy: str) -> None:
    e = OSError(code, os.strerror(code), "/videos/x")
    fault = fault_from_os(e, "writing x", LedgerError, where="/videos")
    assert type(fault) is LedgerError
    assert fault.message.startswith(f"writing x failed: {says}")
    assert remedy in fault.remedy
    assert "progress is saved" in fault.remedy


def test_an_os_error_without_a_path_or_a_number_still_reads_well() -> None:
    full = fault_from_os(OSError(errno.ENOSPC, "full"), "copying", EnvironmentFault)
    assert full.message == "copying failed: the disk that holds it is full."
    bare = fault_from_os(OSError("odd"), "copying", EnvironmentFault)
    assert bare.message == "copying failed: odd."
