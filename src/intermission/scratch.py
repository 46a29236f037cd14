"""Scratch: a machine's copies of files that lie elsewhere, and the folders of attempts.

One cache for all slots of all workers of the machine, with a bound on its size. A copy is fetched
and verified once, under the digest of its bytes or the fingerprint of its source, and trusted
from then on; when there is no room, the copies that nobody has used for longest go. A copy that a
task uses stays until the task ends, even above the bound; what is too much goes then. What a
killed process leaves is removed by the next that comes: every task holds a lock that the kernel
frees at its death.

    max_bytes                 the bound, as the last program that was started says
    entries/KEY/NAME          a copy; `.used-TASK` beside it says who uses it
    tasks/TASK.lock, TASK/    a task that is alive, and the folders of its attempts
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar
from uuid import uuid4

from intermission.errors import EnvironmentFault, Permanent, fault_from_os
from intermission.model import FileRef, Source, identity

P = ParamSpec("P")
T = TypeVar("T")

_BOUND = "max_bytes"
_USED = ".used-"
_FETCH = ".fetch"
_FREE_SHARE = 0.5
"""Without a bound: of what the disk has free besides."""

_thread = threading.local()


def source_entry(source: Source) -> str:
    """The key of a source's copy."""
    return identity("source", source.uri, source.fingerprint)


@dataclass(frozen=True)
class Scratch:
    """The scratch of this machine below a folder. For any process and thread."""

    folder: Path

    @property
    def tasks(self) -> Path:
        return self.folder / "tasks"

    @property
    def _entries(self) -> Path:
        return self.folder / "entries"

    def limit(self, max_bytes: int | None) -> None:
        """How much may be kept from here on; None for a share of the disk."""
        text = "" if max_bytes is None else str(max_bytes)
        path = self.folder / _BOUND
        with self._faults("making room for working files"):
            if not path.exists() or path.read_text() != text:
                self.folder.mkdir(parents=True, exist_ok=True)
                part = path.with_name(f".{uuid4().hex}.part")
                part.write_text(text)
                part.replace(path)

    def file(
        self,
        key: str,
        name: str,
        size_bytes: int,
        fetch: Callable[[Path], object],
        *,
        again: bool = False,
    ) -> Path:
        """The copy under a key. Unless it is here, `fetch` writes it to the path it is given.

        Others who want it meanwhile wait. It stays as long as the block of `holding` that asks.
        With `again`, `fetch` is asked although there is a copy, and may find that it is right.
        """
        if _users() is None:
            with holding(trims=False):  # whoever asks will read it
                return self.file(key, name, size_bytes, fetch, again=again)
        entry = self._entries / key
        path = entry / name
        with self._faults(f"fetching {name}"):
            self._use(entry)
            if again or not _has(path, size_bytes):
                with _locked(entry / _FETCH):
                    if again:
                        self._make_room(0 if path.exists() else size_bytes)
                        fetch(path)
                    elif not _has(path, size_bytes):
                        self._fetch(path, size_bytes, fetch)
        return path

    def attempt(self, name: str) -> Path:
        """A folder for an attempt of the task that holds; not made yet."""
        return self._user().folder / name

    def clean(self) -> None:
        """Remove what tasks left that are no longer alive."""
        with suppress(OSError):
            for lock in self.tasks.glob("*.lock"):
                _remove_if_dead(lock)
            shutil.rmtree(self.folder / "trash", ignore_errors=True)

    def drop(self, keys: Iterable[str]) -> None:
        """Remove copies that are of no more use, except where somebody uses them."""
        with self._faults("removing copies"):
            with _locked(self.folder / ".evict"):
                for key in keys:
                    if not self._is_used(self._entries / key):
                        self._evict(self._entries / key)
            shutil.rmtree(self.folder / "trash", ignore_errors=True)

    def keep_bound(self) -> None:
        """Remove what is too much, now that somebody uses less."""
        with suppress(OSError):
            self._make_room(0)

    def used_bytes(self) -> int:
        return sum(map(_size_of, self._all()))

    def _all(self) -> Iterator[Path]:
        for folder in (self._entries, self.tasks):
            with suppress(OSError):
                yield from folder.iterdir()

    def _use(self, entry: Path) -> None:
        """Keep an entry from being evicted, as long as the task that holds."""
        user = self._user()
        with _locked(self.folder / ".evict", fcntl.LOCK_SH):
            entry.mkdir(parents=True, exist_ok=True)
            user.mark(entry)
            (entry / _FETCH).touch()

    def _user(self) -> _User:
        users = _users()
        assert users is not None, "copies and attempts are made inside a block of `holding`"
        if self not in users:
            self.clean()
            users[self] = _User(self.tasks)
        return users[self]

    def _fetch(self, path: Path, size_bytes: int, fetch: Callable[[Path], object]) -> None:
        part = path.with_name(f".{path.name}.part")
        for left in path.parent.glob(".*.part"):
            if left != part:  # of a fetch that was killed; ours may be gone on with
                left.unlink(missing_ok=True)
        self._make_room(size_bytes)
        fetch(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())  # whoever finds it trusts it
        part.chmod(0o444)
        part.replace(path)

    def _make_room(self, size_bytes: int) -> None:
        """Remove unused copies, those that nobody used for longest first, as long as need be."""
        sizes = {one: _size_of(one) for one in self._all()}
        excess_bytes = sum(sizes.values()) + size_bytes - self._max_bytes(sum(sizes.values()))
        if excess_bytes <= 0:
            return
        with _locked(self.folder / ".evict"):
            entries = [one for one in sizes if one.parent == self._entries]
            for entry in sorted(entries, key=_last_used_ns):
                if excess_bytes <= 0:
                    break
                if not self._is_used(entry):
                    excess_bytes -= sizes[entry]
                    self._evict(entry)
        shutil.rmtree(self.folder / "trash", ignore_errors=True)

    def _evict(self, entry: Path) -> None:
        """In one step, so that nobody finds a part of it."""
        trash = self.folder / "trash" / uuid4().hex
        trash.parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            entry.rename(trash)

    def _max_bytes(self, used_bytes: int) -> int:
        with suppress(OSError, ValueError):
            return int((self.folder / _BOUND).read_text())
        return int((shutil.disk_usage(self.folder).free + used_bytes) * _FREE_SHARE)

    def _is_used(self, entry: Path) -> bool:
        for mark in entry.glob(f"{_USED}*"):
            if is_held(self.tasks / f"{mark.name.removeprefix(_USED)}.lock"):
                return True
            mark.unlink(missing_ok=True)
        return False

    @contextmanager
    def _faults(self, doing: str) -> Generator[None, None, None]:
        try:
            yield
        except OSError as e:
            raise fault_from_os(e, doing, EnvironmentFault, where=self.folder) from e


class FetchedFiles(Mapping[str, Path]):
    """Local paths of a task's files by name, each fetched when it is first asked for."""

    def __init__(self, files: Iterable[FileRef], fetch: Callable[[FileRef], Path]) -> None:
        self._refs = {ref.name: ref for ref in files}
        self._fetch = fetch
        self._paths: dict[str, Path] = {}

    def __getitem__(self, name: str) -> Path:
        if name not in self._paths:
            self._paths[name] = self._fetch(self._refs[name])
        return self._paths[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


def made_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """What an attempt made, by name. Raises `Permanent` for what is no plain file."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Permanent(
                f"{path.name} in the task's folder is not a regular file.",
                remedy="Write outputs as plain files.",
            )
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


class _User:
    """A task, or another piece of work, that uses copies and has folders of its own."""

    def __init__(self, tasks: Path) -> None:
        name = f"{os.getpid()}-{uuid4().hex}"
        self.folder = tasks / name
        self._lock = tasks / f"{name}.lock"
        self.marks: set[Path] = set()
        tasks.mkdir(parents=True, exist_ok=True)
        hidden = tasks / f".{name}"
        self._fd = os.open(hidden, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        hidden.rename(self._lock)  # only now, so that nobody sees it without its lock

    def mark(self, entry: Path) -> None:
        mark = entry / f"{_USED}{self.folder.name}"
        if mark not in self.marks:
            mark.touch()
            self.marks.add(mark)

    def close(self) -> None:
        for mark in self.marks:
            with suppress(OSError):
                mark.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            self._lock.unlink()
        os.close(self._fd)


class holding:
    """What this thread fetches or makes in a scratch stays here until the block ends.

    With `trims`, what is above the bound then goes. Also for a whole function. Every task enters
    one: a generator would take several times as long.
    """

    __slots__ = ("_outer", "_trims", "_users")

    def __init__(self, *, trims: bool = True) -> None:
        self._trims = trims

    def __enter__(self) -> None:
        self._outer = _users()
        self._users: dict[Scratch, _User] = {}
        _thread.users = self._users

    def __exit__(self, *_: object) -> None:
        _thread.users = self._outer
        for scratch, user in self._users.items():
            user.close()
            if self._trims and user.marks:
                scratch.keep_bound()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def held(*args: P.args, **kwargs: P.kwargs) -> T:
            with holding(trims=self._trims):
                return function(*args, **kwargs)

        return held


def _users() -> dict[Scratch, _User] | None:
    """What this thread holds; None outside a block of `holding`."""
    return getattr(_thread, "users", None)


@contextmanager
def _locked(path: Path, how: int = fcntl.LOCK_EX) -> Generator[None, None, None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def is_held(lock: Path) -> bool | None:
    """Whether a living process has locked a file; None where there is no file."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _remove_if_dead(lock: Path) -> None:
    if not is_held(lock):
        shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
        lock.unlink(missing_ok=True)


def _size_of(path: Path) -> int:
    """The bytes of the files at and below a path; what vanishes meanwhile has none."""
    if not path.is_dir():
        return 0
    size_bytes = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                size_bytes += os.lstat(f"{folder}/{name}").st_size
    return size_bytes


def _last_used_ns(entry: Path) -> int:
    with suppress(OSError):
        return (entry / _FETCH).stat().st_mtime_ns
    return 0


def _has(path: Path, size_bytes: int) -> bool:
    """Whether a copy is here. Its bytes were verified when it came; a torn one has another size."""
    with suppress(OSError):
        return path.stat().st_size == size_bytes
    return False
