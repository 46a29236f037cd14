"""Local sources: which content a file has, told once and remembered for as long as it holds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from intermission.errors import NotFound, SourceChanged, SourceError
from intermission.model import Source
from intermission.ports.store import Store

_MEMORY_KEY = "source.json"
STAMP_SETTLES_NS = 2_000_000_000
_BUFFER_BYTES = 8 * 1024**2


def signature(path: Path) -> str:
    """Device, inode, size and both times: a change of content changes the ctime at least."""
    try:
        stat = path.stat()
    except OSError as e:
        raise _unreadable(path, e) from e
    return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"


def content_hash(path: Path) -> str:
    try:
        return hash_files(path)
    except OSError as e:
        raise _unreadable(path, e) from e


def hash_files(*paths: Path) -> str:
    """The hash of the files' bytes, one after the other.

    Read, not mapped: pages of a mapped file count as memory of the process that looked at them.
    """
    digest = blake3(max_threads=blake3.AUTO)
    buffer = bytearray(min(_BUFFER_BYTES, 1 + sum(path.stat().st_size for path in paths)))
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(memoryview(buffer)[:count])
    return digest.hexdigest(32)


def _unreadable(path: Path, e: OSError) -> SourceError:
    why = e.strerror or e  # blake3 puts everything into the message
    return SourceError(
        f"{path} cannot be read: {why}.", remedy="Check the path and its permissions."
    )


def identify(path: Path, memory: Store, *, remember: bool = True) -> Source:
    """The source a local file is. Hashes the file unless `memory` has its signature.

    Without `remember`, `memory` is only read.
    """
    version = signature(path)
    fingerprint = _remembered(memory, version)
    if fingerprint is None:
        fingerprint = content_hash(path)
        require_unchanged(path, version)
        if remember and _is_settled(path):
            known = {"version": version, "fingerprint": fingerprint}
            memory.replace(_MEMORY_KEY, json.dumps(known).encode())
    return Source(path.resolve().as_uri(), fingerprint, path.stat().st_size, version)


def require_unchanged(path: Path, version: str) -> None:
    """Raise `SourceChanged` unless a file still has the signature it had before it was read."""
    if signature(path) != version:
        raise SourceChanged(
            f"{path} was written to while it was being read.",
            remedy="Wait until it is complete, then run the same command again.",
        )


def _is_settled(path: Path) -> bool:
    """A stamp as young as this could survive another write without changing."""
    return time.time_ns() - path.stat().st_ctime_ns > STAMP_SETTLES_NS


def _remembered(memory: Store, version: str) -> str | None:
    try:
        known: dict[str, str] = json.loads(memory.read(_MEMORY_KEY))
        return known["fingerprint"] if known["version"] == version else None
    except (NotFound, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class FetchedSource(Source):
    """A source elsewhere, whose bytes are fetched when a step first asks for its file."""

    fetch: Callable[[Source], Path] | None = None

    @classmethod
    def of(cls, source: Source, fetch: Callable[[Source], Path]) -> FetchedSource:
        return cls(source.uri, source.fingerprint, source.size_bytes, source.version, fetch)

    @property
    def path(self) -> Path:
        assert self.fetch is not None
        return self.fetch(Source(self.uri, self.fingerprint, self.size_bytes, self.version))


class SourceCheck:
    """Makes sure, before and after a step reads a source, that it is still the planned one."""

    def __init__(self) -> None:
        self._good: set[tuple[str, str]] = set()

    def __call__(self, source: Source) -> None:
        if not source.uri.startswith("file:"):
            return
        found = signature(source.path)
        if found == source.version or (found, source.fingerprint) in self._good:
            return
        if content_hash(source.path) != source.fingerprint:
            raise SourceChanged(
                f"{source.path} is not the file this job was planned for.",
                remedy="Run the same command again: the new content is a new job.",
            )
        self._good.add((found, source.fingerprint))
