"""The object store as the engine sees it: create-only writes and verified reads.

Keys are relative, `/`-separated and never empty; no part is `.` or `..`. Implementations
raise `StoreError` for what went wrong outside, `NotFound` and `AlreadyExists` for what the
caller asked about, and never anything of their driver's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from intermission.errors import NotFound


@dataclass(frozen=True, slots=True)
class Stat:
    """One object. `version` changes whenever its bytes may have (ETag, or inode and times)."""

    key: str
    size_bytes: int
    version: str
    modified_ms: int


class Store(Protocol):
    """Objects under keys. Every write is durable when the call returns."""

    @property
    def uri(self) -> str:
        """Where this store is, for people and error messages."""
        ...

    def create(self, key: str, data: bytes | Path) -> Stat:
        """Write an object that must not exist yet; the first writer wins, atomically.

        Raises `AlreadyExists` when it does. When the outcome of the write is unknown the
        implementation reads back and compares, so that a caller is never told it lost to
        itself. `data` as a Path streams that file; a file that already lies at
        `local_path(key)` is made durable where it is.
        """
        ...

    def replace(self, key: str, data: bytes | Path, *, if_version: str | None = None) -> Stat:
        """Write an object whether or not it exists; readers see the old or the new, whole.

        With `if_version`, only if the object still has that version, else `AlreadyExists`.
        """
        ...

    def read(self, key: str) -> bytes:
        """The whole object. Raises `NotFound`."""
        ...

    def read_range(self, key: str, offset: int, size_bytes: int) -> bytes:
        """These bytes of an object, which has them all; no more than these are moved.

        Raises `NotFound`, and `StoreError` when the object is shorter. Bytes of a part can't be
        verified: whoever needs proof takes `fetch`.
        """
        ...

    def fetch(self, key: str, to: Path, *, size_bytes: int, sha256: str) -> Path:
        """A local file with exactly these bytes: `to`, or the store's own file where it has one.

        Raises `CorruptArtifact` when the bytes are missing or not these.
        """
        ...

    def stat(self, key: str) -> Stat | None:
        """What is known of an object without reading it; None when there is none."""
        ...

    def list(self, prefix: str) -> Iterator[Stat]:
        """Every object whose key starts with `prefix`, in key order."""
        ...

    def move(self, key: str, to: str) -> None:
        """Rename an object; a repeat after a crash finds it moved and succeeds.

        Raises `NotFound` when neither is there. Not atomic on object stores.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove an object; removing one that is not there succeeds."""
        ...

    def presign(self, key: str, *, expires_s: int, writes: bool = False) -> str:
        """A URL that reads this object until it expires, or writes it."""
        ...

    def local_path(self, key: str) -> Path | None:
        """Where on this machine the object lies or would lie; None for a remote store."""
        ...

    def self_test(self) -> None:
        """Prove that a second create of the same key is refused, or raise `StoreError`."""
        ...


def read_note(store: Store, key: str) -> dict[str, Any]:
    """What a small JSON object says; nothing, where there is none or it can't be read."""
    try:
        said = json.loads(store.read(key))
    except (NotFound, ValueError):
        return {}
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def write_note(store: Store, key: str, said: dict[str, Any]) -> None:
    """Remember something that a workspace can do without."""
    store.replace(key, json.dumps(said).encode())
