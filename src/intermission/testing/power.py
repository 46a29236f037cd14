"""What a disk may hold after a power loss, from a record of what was written to it and synced.

A disk keeps what was synced. Of the rest it keeps what it likes: writes are lost, torn at
sectors or stored in another order, a file grows without its bytes, a name is missing or an old
one is still there. The one thing that holds is that of two changes to the same name the second
never survives without the first, and that a rename happens whole or not at all; every file
system in use promises as much.

This is a model: it holds file contents in memory and never touches a disk.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from posixpath import dirname

SECTOR_BYTES = 512

Image = dict[str, bytes | None]
"""The contents of every file by its path; None for a folder."""


@dataclass(frozen=True)
class Create:
    path: str


@dataclass(frozen=True)
class Folder:
    path: str


@dataclass(frozen=True)
class Write:
    path: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Truncate:
    path: str
    size_bytes: int


@dataclass(frozen=True)
class Link:
    path: str
    to: str


@dataclass(frozen=True)
class Rename:
    path: str
    to: str


@dataclass(frozen=True)
class Remove:
    path: str


@dataclass(frozen=True)
class Sync:
    """A completed sync of a file or a folder, with how many operations were complete before it
    began: those are durable now."""

    path: str
    began: int


Operation = Create | Folder | Write | Truncate | Link | Rename | Remove | Sync


@dataclass
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Write | Truncate]] = field(
        default_factory=list[tuple[int, Write | Truncate]]
    )


_Entry = _File | None
"""What a name stands for; None is a folder, of which the names in it are all there is."""


@dataclass(frozen=True)
class _Naming:
    """A change of names, in one step: what is removed, and what each new name stands for."""

    at: int
    removed: str | None
    added: str | None
    entry: _Entry = None

    @property
    def names(self) -> list[str]:
        return [name for name in (self.removed, self.added) if name is not None]


class Disk:
    """Everything below `root`, as far as it has been replayed."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._now: dict[str, _Entry] = {}
        self._durable: dict[str, _Entry] = {}
        self._pending: list[_Naming] = []
        self._applied = 0

    def apply(self, operation: Operation) -> None:
        at = self._applied
        self._applied += 1
        match operation:
            case Create(path):
                self._name(_Naming(at, None, path, _File()))
            case Folder(path):
                self._name(_Naming(at, None, path))
            case Link(path, to):
                self._name(_Naming(at, None, to, self._now[path]))
            case Rename(path, to):
                self._name(_Naming(at, path, to, self._now[path]))
            case Remove(path):
                self._name(_Naming(at, path, None))
            case Write(path) | Truncate(path):
                self._file(path).pending.append((at, operation))
            case Sync(path, began):
                self._sync(path, began)

    def _name(self, naming: _Naming) -> None:
        _rename(self._now, naming)
        self._pending.append(naming)

    def _file(self, path: str) -> _File:
        entry = self._now[path]
        if entry is None:
            raise ValueError(f"{path} is a folder")
        return entry

    def _sync(self, path: str, began: int) -> None:
        entry = self._now.get(path)
        if entry is not None:
            for at, change in entry.pending:
                if at < began:
                    _change(entry.durable, change)
            entry.pending = [(at, change) for at, change in entry.pending if at >= began]
            return
        waiting: list[_Naming] = []
        for naming in self._pending:
            here = path in [dirname(name) for name in naming.names]
            # What must not survive without an earlier change has to bring it along.
            if here and naming.at < began:
                for earlier in _needed(waiting, naming):
                    _rename(self._durable, earlier)
                    waiting.remove(earlier)
                _rename(self._durable, naming)
            else:
                waiting.append(naming)
        self._pending = waiting

    def image(self, rng: random.Random, keep: float) -> Image:
        """One state the disk may be in now; of what is not synced, about `keep` survives."""
        names = dict(self._durable)
        lost: set[str] = set()
        for naming in self._pending:
            if lost.isdisjoint(naming.names) and rng.random() < keep:
                _rename(names, naming)
            else:
                lost.update(naming.names)
        contents: dict[int, bytes] = {}
        image: Image = {}
        for path in sorted(names):
            if not self._reachable(path, names):
                continue
            entry = names[path]
            if entry is not None and id(entry) not in contents:
                contents[id(entry)] = _survivor(entry, rng, keep)
            image[path] = None if entry is None else contents[id(entry)]
        return image

    def _reachable(self, path: str, names: dict[str, _Entry]) -> bool:
        folder = dirname(path)
        while folder != self.root:
            if names.get(folder, _GONE) is not None:
                return False
            folder = dirname(folder)
        return True


_GONE = _File()


def _rename(names: dict[str, _Entry], naming: _Naming) -> None:
    if naming.removed is not None:
        names.pop(naming.removed, None)
    if naming.added is not None:
        names[naming.added] = naming.entry


def _needed(waiting: list[_Naming], naming: _Naming) -> list[_Naming]:
    """The earlier changes, in order, without which this one cannot survive."""
    names, found = set(naming.names), list[_Naming]()
    for earlier in reversed(waiting):
        if not names.isdisjoint(earlier.names):
            names.update(earlier.names)
            found.append(earlier)
    return found[::-1]


def _change(content: bytearray, change: Write | Truncate) -> None:
    match change:
        case Write(_, offset, data):
            if len(content) < offset:
                content.extend(bytes(offset - len(content)))
            content[offset : offset + len(data)] = data
        case Truncate(_, size_bytes):
            del content[size_bytes:]
            content.extend(bytes(size_bytes - len(content)))


def _survivor(file: _File, rng: random.Random, keep: float) -> bytes:
    content = bytearray(file.durable)
    for _, change in file.pending:
        match change:
            case Truncate():
                if rng.random() < keep:
                    _change(content, change)
            case Write():
                for part in _surviving_parts(change, rng, keep):
                    _change(content, part)
                # The size is stored apart from the bytes: what is missing reads as zeros.
                end = change.offset + len(change.data)
                if len(content) < end and rng.random() < keep:
                    content.extend(bytes(end - len(content)))
    return bytes(content)


def _surviving_parts(write: Write, rng: random.Random, keep: float) -> Iterator[Write]:
    """All of a write, nothing of it, or any of its sectors."""
    if rng.random() < 0.5:
        if rng.random() < keep:
            yield write
        return
    start = 0
    while start < len(write.data):
        at = write.offset + start
        end = start + SECTOR_BYTES - at % SECTOR_BYTES
        if rng.random() < keep:
            yield Write(write.path, at, write.data[start:end])
        start = end
