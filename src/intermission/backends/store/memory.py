"""`MemoryStore`: objects in this process's memory, for tests and simulations.

It keeps every promise of the port but durability, and has no files of its own.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from intermission.backends.store.keys import checked_key, split_prefix
from intermission.backends.store.self_test import prove_create_only
from intermission.backends.store.store_errors import changed, missing, taken, verify, whole_range
from intermission.errors import StoreError, os_faults
from intermission.ports.clock import Clock, SystemClock
from intermission.ports.store import Stat


class _Object(NamedTuple):
    data: bytes
    stat: Stat


class MemoryStore:
    """Objects in a dictionary behind one lock. The clock only dates them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._writes = 0

    @property
    def uri(self) -> str:
        return "memory:"

    def create(self, key: str, data: bytes | Path) -> Stat:
        body = _bytes(checked_key(key), data)
        with self._lock:
            if key in self._objects:
                raise taken(key, self.uri)
            return self._put(key, body)

    def replace(self, key: str, data: bytes | Path, *, if_version: str | None = None) -> Stat:
        body = _bytes(checked_key(key), data)
        with self._lock:
            found = self._objects.get(key)
            if if_version is not None and (found is None or found.stat.version != if_version):
                raise changed(key, self.uri, is_there=found is not None)
            return self._put(key, body)

    def _put(self, key: str, body: bytes) -> Stat:
        self._writes += 1
        stat = Stat(key, len(body), str(self._writes), self._clock.now_ms())
        self._objects[key] = _Object(body, stat)
        return stat

    def read(self, key: str) -> bytes:
        found = self._objects.get(checked_key(key))
        if found is None:
            raise missing(key, self.uri)
        return found.data

    def read_range(self, key: str, offset: int, size_bytes: int) -> bytes:
        found = self.read(key)[offset : offset + size_bytes]
        return whole_range(key, self.uri, found, offset, size_bytes)

    def fetch(self, key: str, to: Path, *, size_bytes: int, sha256: str) -> Path:
        found = self._objects.get(checked_key(key))
        data = b"" if found is None else found.data
        verify(
            key,
            self.uri,
            size_bytes=size_bytes,
            sha256=sha256,
            found_bytes=None if found is None else len(data),
            digest=lambda: hashlib.sha256(data).hexdigest(),
        )
        with os_faults(f"fetching {key}", StoreError, where=to.parent):
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(data)
        return to

    def stat(self, key: str) -> Stat | None:
        found = self._objects.get(checked_key(key))
        return None if found is None else found.stat

    def list(self, prefix: str) -> Iterator[Stat]:
        split_prefix(prefix)
        with self._lock:
            found = [one.stat for key, one in self._objects.items() if key.startswith(prefix)]
        return iter(sorted(found, key=lambda stat: stat.key))

    def move(self, key: str, to: str) -> None:
        checked_key(key)
        checked_key(to)
        with self._lock:
            found = self._objects.get(key)
            if found is not None:
                self._put(to, found.data)
                if to != key:
                    del self._objects[key]
            elif to not in self._objects:
                raise missing(key, self.uri)

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(checked_key(key), None)

    def presign(self, key: str, *, expires_s: int, writes: bool = False) -> str:
        """A URL that names the object; only this store object could read it."""
        return f"{self.uri}{checked_key(key)}"

    def local_path(self, key: str) -> Path | None:
        checked_key(key)
        return None

    def self_test(self) -> None:
        prove_create_only(self)


def _bytes(key: str, data: bytes | Path) -> bytes:
    if not isinstance(data, Path):
        return bytes(data)
    with os_faults(f"writing {key}", StoreError, where=data):
        return data.read_bytes()
