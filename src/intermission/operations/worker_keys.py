"""Registered workers and their keys, for the server that they call: made, found, refused.

Keys are looked up at every call, so that one that was revoked or rotated away fails at the next.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from intermission.backends.registry.keys import KEY_START, mint, opens, prefix_of
from intermission.operations.workers import new_key, no_worker
from intermission.ports.clock import Clock
from intermission.ports.registry import Registry, WorkerRow

__all__ = ["KeyRefused", "NewKey", "Registry", "WorkerKeys", "WorkerRow"]

_REGISTER = "Register the worker with POST /api/v1/workers and use the key it answers."


class KeyRefused(Exception):
    """A key that opens nothing: unknown, revoked or expired."""

    def __init__(self, title: str, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.title = title
        self.remedy = remedy


@dataclass(frozen=True)
class NewKey:
    """A new key. It is shown here and never again: its text is known to nobody else."""

    id: str
    key: str
    expires_ms: int | None


class WorkerKeys:
    """The workers of one registry."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock

    def register(
        self,
        *,
        name: str,
        can: tuple[str, ...],
        metadata: Mapping[str, Any],
        version: str,
        expires_s: float | None,
    ) -> NewKey:
        """Make a worker and its first key."""
        now_ms = self._clock.now_ms()
        expires_ms = None if expires_s is None else now_ms + round(expires_s * 1000)
        key, kept = mint(expires_ms=expires_ms)
        id = f"{name}-{uuid4().hex[:8]}"
        row = WorkerRow(
            id=id,
            name=name,
            can=can,
            metadata=metadata,
            version=version,
            registered_ms=now_ms,
            lease_secret=os.urandom(32),
        )
        self._registry.register(row, kept)
        return NewKey(id, key, kept.expires_ms)

    def rotate(self, id: str, *, keep_s: float, expires_s: float | None) -> NewKey:
        """Give a worker a new key; those it has end after `keep_s`."""
        now_ms = self._clock.now_ms()
        key, kept = new_key(self._registry, id, now_ms=now_ms, keep_s=keep_s, expires_s=expires_s)
        return NewKey(id, key, kept.expires_ms)

    def revoke(self, id: str) -> None:
        """Disable a worker. Raises `NotFound` when there is none of that id."""
        if not self._registry.revoke(id, at_ms=self._clock.now_ms()):
            raise no_worker(id)

    def seen(self, id: str, *, slots: int, busy: int, version: str) -> None:
        """Note a worker's sign of life."""
        now_ms = self._clock.now_ms()
        self._registry.seen(id, at_ms=now_ms, slots=slots, busy=busy, version=version)

    @staticmethod
    def is_key(given: str) -> bool:
        """Whether this looks like a worker's key, and not like the admin secret."""
        return given.startswith(KEY_START)

    def worker(self, given: str) -> WorkerRow:
        """Whose key this is. Raises `KeyRefused`."""
        prefix = prefix_of(given)
        found = self._registry.find(prefix) if prefix is not None else None
        if found is None or not opens(given, found[1]):
            raise KeyRefused("The key is unknown", "no worker has it.", _REGISTER)
        worker, key = found
        if worker.revoked_ms is not None:
            raise KeyRefused(
                "The worker is disabled", f"worker {worker.id} was revoked.", _REGISTER
            )
        if key.expires_ms is not None and key.expires_ms <= self._clock.now_ms():
            raise KeyRefused(
                "The key has expired",
                f"the key {key.prefix} of worker {worker.id} opens nothing any more.",
                f"Get a new one with POST /api/v1/workers/{worker.id}/rotate.",
            )
        return worker
