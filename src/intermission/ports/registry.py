"""The registry as a server sees it: which workers there are, and the keys they call with.

It feeds the view of the fleet and decides who may call; never who holds a lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A registered worker. Times are UTC milliseconds."""

    id: str
    name: str
    can: tuple[str, ...]
    metadata: Mapping[str, Any]
    version: str
    """Of the program it runs."""
    registered_ms: int
    lease_secret: bytes
    """Signs its lease tokens."""
    heard_ms: int | None = None
    slots: int = 0
    busy: int = 0
    revoked_ms: int | None = None


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key: never the secret itself. From `expires_ms` on it opens nothing."""

    prefix: str
    sha256: str
    expires_ms: int | None = None


class Registry(Protocol):
    """Safe for any thread; every change is one transaction. Raises `LedgerError`."""

    def register(self, worker: WorkerRow, key: KeyRow) -> None: ...
    def rotate(self, id: str, key: KeyRow, *, old_until_ms: int) -> bool:
        """Add a key; those it had end then, if not sooner. False for no such worker."""
        ...

    def revoke(self, id: str, *, at_ms: int) -> bool: ...
    def find(self, prefix: str) -> tuple[WorkerRow, KeyRow] | None: ...
    def seen(self, id: str, *, at_ms: int, slots: int, busy: int, version: str) -> None: ...
    def workers(self) -> list[WorkerRow]: ...
    def close(self) -> None: ...
