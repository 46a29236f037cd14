"""`LocalStore`: objects as files under one folder, create-only by hard link.

An object is a regular file at `root/key`. It is written and synced under `root/.tmp`, then
linked to its name, which the file system refuses if the name is taken; then the folder is
synced. So a name that exists has all its bytes, and whoever is told so can pull the plug.
A key cannot be both an object and the folder of others here. Links, pipes and devices are no
objects, and no link below the root is followed.
"""

# Every receipt comes this way, and a Path costs more than the call it wraps.
# ruff: noqa: PTH103, PTH104, PTH105, PTH108, PTH112, PTH116, PTH118, PTH123

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from intermission.backends.store.fsync import Folders, discard, fill, open_new, sync_file
from intermission.backends.store.keys import TEMP_FOLDER, checked_key, is_key, split_prefix
from intermission.backends.store.self_test import prove_create_only
from intermission.backends.store.store_errors import changed, missing, taken, verify, whole_range
from intermission.errors import IntermissionError, StoreError, os_faults
from intermission.ports.store import Stat

_VERIFIED_MAX = 10_000
_STAMP_SETTLES_NS = 2_000_000_000
_TEMP_KEPT_S = 24 * 3600
_LOCK = "lock"

_proven: set[int] = set()
"""Devices that have refused a second create in this process."""


class LocalStore:
    """A folder as an object store. Any number of threads and processes may share the folder."""

    def __init__(self, root: Path, *, temp: Path | None = None) -> None:
        """`temp`, on the same file system, takes files being written; `root/.tmp` unless given."""
        self._root = os.path.realpath(root)
        self._temp = os.path.realpath(temp or Path(root, TEMP_FOLDER))
        self._folders = Folders(self._root)
        self._temps = Folders(self._temp, lasting=False)
        self._verified: dict[str, tuple[str, str]] = {}

    @property
    def uri(self) -> str:
        return Path(self._root).as_uri()

    def create(self, key: str, data: bytes | Path) -> Stat:
        path = self._path(key)
        with self._faults(f"writing {key}"):
            if isinstance(data, Path) and _same_name(data, path):
                return self._settle_in_place(key, path)
            temp = self._write_temp(data)
            try:
                self._folders.place(path, lambda: _link(temp, path))
                linked = os.lstat(temp)
            except FileExistsError:
                raise self._lost(key, path) from None
            finally:
                discard(temp)
            # Removing the temporary name changed the version once more. Should the object be
            # replaced by now, its new version is not ours to hand out.
            found = _object(path)
            self._folders.sync_above(path)
            return _stat(key, found if found and _same_file(found, linked) else linked)

    def replace(self, key: str, data: bytes | Path, *, if_version: str | None = None) -> Stat:
        path = self._path(key)
        with self._faults(f"writing {key}"):
            if isinstance(data, Path) and _same_name(data, path):
                with self._locked():
                    self._require(key, path, if_version)
                return self._settle_in_place(key, path)
            temp = self._write_temp(data)
            try:
                with self._locked():
                    self._require(key, path, if_version)
                    self._folders.place(path, lambda: os.replace(temp, path))
                    found = _stat(key, os.lstat(path))
            except BaseException:
                discard(temp)
                raise
            self._folders.sync_above(path)
            return found

    def read(self, key: str) -> bytes:
        path = self._path(key)
        with self._faults(f"reading {key}"):
            # It may be removed between these two calls, and then the answer is the same.
            if self._find(path) is not None:
                with suppress(FileNotFoundError):
                    return Path(path).read_bytes()
        raise missing(key, self._root)

    def read_range(self, key: str, offset: int, size_bytes: int) -> bytes:
        path = self._path(key)
        with self._faults(f"reading {key}"):
            if self._find(path) is not None:
                with suppress(FileNotFoundError), Path(path).open("rb") as file:
                    file.seek(offset)
                    return whole_range(key, self._root, file.read(size_bytes), offset, size_bytes)
        raise missing(key, self._root)

    def fetch(self, key: str, to: Path, *, size_bytes: int, sha256: str) -> Path:
        """The object's own file, verified; `to` stays untouched.

        An unchanged file is hashed once per store object, however often it is fetched.
        """
        path = self._path(key)
        with self._faults(f"verifying {key}"):
            found = self._find(path)
            verify(
                key,
                self._root,
                size_bytes=size_bytes,
                sha256=sha256,
                found_bytes=None if found is None else found.st_size,
                digest=lambda: self._sha256(path),
            )
        return Path(path)

    def stat(self, key: str) -> Stat | None:
        path = self._path(key)
        with self._faults(f"looking for {key}"):
            found = self._find(path)
        return None if found is None else _stat(key, found)

    def list(self, prefix: str) -> Iterator[Stat]:
        folder, start = split_prefix(prefix)
        return self._list(prefix, folder, start)

    def _list(self, prefix: str, folder: str, start: str) -> Iterator[Stat]:
        with self._faults(f"listing {prefix or 'everything'}"):
            self._folders.check_above(f"{self._root}/{prefix}")
            yield from self._walk(folder, start)

    def move(self, key: str, to: str) -> None:
        source, target = self._path(key), self._path(to)
        with self._faults(f"moving {key} to {to}"):
            if self._find(source) is None and self._find(target) is None:
                raise missing(key, self._root)
            with self._locked():
                if self._find(source) is not None:
                    self._folders.place(target, lambda: os.rename(source, target))
            # Also after a move that was found made: its maker may not have come this far.
            self._folders.sync_above(target)
            self._folders.prune_above(source)
            self._folders.sync_above(source)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._faults(f"deleting {key}"):
            if self._find(path) is None:
                return
            with self._locked(), suppress(FileNotFoundError):
                os.unlink(path)
            self._folders.prune_above(path)
            self._folders.sync_above(path)

    def presign(self, key: str, *, expires_s: int, writes: bool = False) -> str:
        """A file URI. It does not expire: whoever may read the file may go on reading it."""
        return Path(self._path(key)).as_uri()

    def local_path(self, key: str) -> Path:
        return Path(self._path(key))

    def self_test(self) -> None:
        """Prove create-only, and sweep what processes killed over a day ago left unfinished.

        A file system that has been seen to do it once in this process is believed.
        """
        with self._faults("making the folder"):
            os.makedirs(self._root, exist_ok=True)
            device = os.stat(self._root).st_dev
        if device not in _proven:
            prove_create_only(self)
            _proven.add(device)
        with self._faults("sweeping temporary files"):
            self._sweep()

    def _path(self, key: str) -> str:
        return f"{self._root}/{checked_key(key)}"

    def _find(self, path: str) -> os.stat_result | None:
        """The object at a path, if there is one and no link leads there."""
        self._folders.check_above(path)
        return _object(path)

    def _faults(self, doing: str) -> AbstractContextManager[None]:
        return os_faults(doing, StoreError, where=self._root)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other threads and processes from changing what exists; `create` only adds."""
        path = f"{self._temp}/{_LOCK}"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = self._temps.place(path, lambda: os.open(path, flags, 0o666))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _write_temp(self, data: bytes | Path) -> str:
        path = f"{self._temp}/{os.urandom(8).hex()}"
        fd = self._temps.place(path, lambda: open_new(path))
        fill(fd, path, data)
        return path

    def _settle_in_place(self, key: str, path: str) -> Stat:
        if self._find(path) is None:
            raise StoreError(
                f"expected a finished file at {path}, found none.",
                remedy="Write the bytes themselves there, not a link, before the object is made.",
            )
        sync_file(path)
        self._folders.settle_above(path)
        self._folders.sync_above(path)
        return _stat(key, os.lstat(path))

    def _require(self, key: str, path: str, version: str | None) -> None:
        if version is None:
            return
        found = self._find(path)
        if found is None or _version(found) != version:
            raise changed(key, self._root, is_there=found is not None)

    def _lost(self, key: str, path: str) -> IntermissionError:
        """Why a create was refused. The winner is made durable first.

        A caller that adopts the winner's object reports its own work as done on the strength
        of it, and the winner may have been killed before its last sync.
        """
        if os.path.isdir(path):
            return StoreError(
                f"expected no folder at {path}, found one.",
                remedy="A key of a local store is an object or a folder of objects, never both.",
            )
        self._folders.sync_above(path)
        return taken(key, self._root)

    def _sha256(self, path: str) -> str:
        known = self._verified.get(path)
        if known and known[0] == _version(os.lstat(path)):
            return known[1]
        with open(path, "rb", buffering=0) as file:
            began, began_ns = os.fstat(file.fileno()), time.time_ns()
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            version = _version(os.fstat(file.fileno()))
        # A stamp as young as this could survive another write without changing.
        if version == _version(began) and began_ns - began.st_ctime_ns > _STAMP_SETTLES_NS:
            if len(self._verified) >= _VERIFIED_MAX:
                self._verified.clear()
            self._verified[path] = version, digest
        return digest

    def _walk(self, folder: str, start: str) -> Iterator[Stat]:
        for name in self._names(folder, start):
            key = f"{folder}/{name}" if folder else name
            if name.endswith("/"):
                yield from self._walk(key[:-1], "")
            # What cannot be a key is no object: temporary files, names that are not UTF-8.
            elif is_key(key) and (found := _object(f"{self._root}/{key}")):
                yield _stat(key, found)

    def _names(self, folder: str, start: str) -> list[str]:
        """The names in a folder as they sort inside keys: a folder's with its slash.

        `a-b` comes before `a/b`, and `a0` after it.
        """
        try:
            with os.scandir(f"{self._root}/{folder}") as entries:
                names = [
                    entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name
                    for entry in entries
                    if entry.name.startswith(start)
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []
        names.sort()
        return names

    def _sweep(self) -> None:
        oldest_s = time.time() - _TEMP_KEPT_S
        os.makedirs(self._temp, exist_ok=True)
        with os.scandir(self._temp) as entries:
            for entry in entries:
                if entry.name == _LOCK:
                    continue
                with suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_mtime < oldest_s:
                        discard(entry.path)


def _object(path: str) -> os.stat_result | None:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _link(temp: str, path: str) -> None:
    try:
        os.link(temp, path)
    except OSError as e:
        if e.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
        raise StoreError(
            f"expected to link {temp} to {path}, but this file system permits no hard links.",
            remedy="Without them it cannot decide who finishes a task. Put the workspace on "
            "another file system.",
        ) from e


def _same_name(data: Path, path: str) -> bool:
    return os.path.join(os.path.realpath(data.parent), data.name) == path


def _same_file(one: os.stat_result, other: os.stat_result) -> bool:
    # The number of a removed file is soon given to another, which has other times.
    return (one.st_ino, one.st_mtime_ns) == (other.st_ino, other.st_mtime_ns)


def _version(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def _stat(key: str, found: os.stat_result) -> Stat:
    # Whoever alters bytes can put the time of the last write back, but not that of the change.
    modified_ns = max(found.st_mtime_ns, found.st_ctime_ns)
    return Stat(key, found.st_size, _version(found), modified_ns // 1_000_000)
