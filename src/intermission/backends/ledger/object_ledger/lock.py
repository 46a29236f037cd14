"""The lock object: one writer for a workspace in an object store, decided by the store alone.

`lock.json` is taken by a create or by a replace of the version that was looked at, renewed
and freed the same way, and never deleted, so that its generation rises with every take and
never goes back. Whether a silent holder is gone is judged by the store's clock: the stamp of
its last renewal against the stamp of an object written now. This module never reads a wall
clock, and never protects the ledger by itself: the ledger's own version does (see `replica`). The
lock saves two machines from doing the same work.

Every write differs from every other, in its owner, generation or beat. On stores whose
versions are hashes of the content, equal bytes would make a renewal invisible to a thief.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import uuid4

from pydantic import Field, TypeAdapter, ValidationError

from intermission.errors import AlreadyExists, LockLost, StoreError, WorkspaceBusy
from intermission.ports.clock import Clock
from intermission.ports.store import Stat, Store
from intermission.telemetry import reached

LOCK_KEY = "lock.json"
LOCK_TTL_S = 60.0
STAMP_MARGIN_S = 2.0
"""Stamps of some stores have whole seconds: two of them may be off by this together."""
MARGIN = 0.2
"""The last part of a lock's life, in which a holder that could not renew has given up."""
TRIES = 5


@dataclass(frozen=True, slots=True)
class LockRecord:
    """What `lock.json` says."""

    owner: str
    generation: Annotated[int, Field(ge=1)]
    state: Literal["held", "free"]
    ttl_s: Annotated[float, Field(gt=0)]
    heartbeat: int = 0
    taken_ms: int | None = None
    """The store's stamp of the take; unknown until the first renewal, whose stamp is near."""
    reason: str | None = None
    """Why it was freed."""

    def to_json(self) -> bytes:
        return _RECORD.dump_json(self)

    @classmethod
    def from_json(cls, data: bytes, where: str) -> LockRecord:
        """What a newer program says besides is left out."""
        try:
            return _RECORD.validate_json(data)
        except ValidationError as e:
            wrong = e.errors(include_url=False)[0]
            what = f"{' '.join(map(str, wrong['loc']))}: {wrong['msg']}".removeprefix(": ")
            raise StoreError(
                f"expected a lock in {LOCK_KEY} of {where}, found something else ({what}).",
                remedy="Make sure that no machine works there, remove it, and run again.",
            ) from e


_RECORD = TypeAdapter(LockRecord)


class Lock:
    """One workspace's lock, as one owner sees it. Used by one thread at a time."""

    def __init__(
        self,
        store: Store,
        worker: str,
        clock: Clock,
        *,
        ttl_s: float = LOCK_TTL_S,
        stamp_margin_s: float = STAMP_MARGIN_S,
    ) -> None:
        self.owner = f"{worker}-{uuid4().hex[:8]}"
        """Unique to this object: two locks of one worker must not take each other for one."""
        self.generation = 0
        """Of the last take."""
        self.renewed_at_s = 0.0
        """Monotonic, from before the last request that succeeded."""
        self._store = store
        self._clock = clock
        self._ttl_s = ttl_s
        self._stamp_margin_s = stamp_margin_s
        self._mine: LockRecord | None = None
        self._version = ""

    @property
    def deadline_s(self) -> float:
        """Monotonic: when work must have ended, because the lock may be stolen soon after."""
        return self.renewed_at_s + self._ttl_s * (1 - MARGIN)

    @property
    def is_held(self) -> bool:
        """Whether it is surely ours: taken, not known to be lost, renewed in time."""
        return self._mine is not None and self._clock.monotonic_s() < self.deadline_s

    def take(self, *, proven_dead: Collection[str] = ()) -> None:
        """Become the owner, or raise `WorkspaceBusy`.

        `proven_dead` are owners whose death this machine has seen for itself; their locks are
        taken without waiting. After a `StoreError` nobody knows who has it: take again, and
        what was ours all the same is found.
        """
        for _ in range(TRIES):
            found = self._look()
            if found is not None:
                self._require_takeable(*found, proven_dead)
            generation = 1 if found is None else found[1].generation + 1
            reached("before-lock-take")
            try:
                self._write(
                    LockRecord(self.owner, generation, "held", self._ttl_s),
                    None if found is None else found[0].version,
                )
            except AlreadyExists:
                continue  # another machine was faster: look which
            reached("after-lock-take")
            return
        raise keeps_changing(LOCK_KEY, self._store)

    def renew(self) -> None:
        """Stay the owner. Raises `LockLost` when another machine is.

        A `StoreError` decides nothing: renew again until the deadline.
        """
        reached("before-lock-renew")
        self._rewrite("held")
        reached("after-lock-renew")

    def release(self, reason: str | None = None) -> None:
        """Let the next owner in at once. A lock that was lost meanwhile is not ours to free."""
        if self._mine is None:
            return
        reached("before-lock-free")
        with suppress(LockLost):
            self._rewrite("free", reason)
        self._mine = None
        reached("after-lock-free")

    def _rewrite(self, state: Literal["held", "free"], reason: str | None = None) -> None:
        for _ in range(TRIES):
            if self._mine is None:
                raise LockLost(
                    f"{LOCK_KEY} of {self._store.uri} is not held by {self.owner} any more.",
                    remedy="Run again to take it.",
                )
            # Counted before the request: one that is thought lost may arrive after all.
            self._mine = replace(self._mine, heartbeat=self._mine.heartbeat + 1)
            try:
                return self._write(replace(self._mine, state=state, reason=reason), self._version)
            except AlreadyExists:
                self._find_own()
        raise keeps_changing(LOCK_KEY, self._store)

    def _write(self, new: LockRecord, version: str | None) -> None:
        """Write the lock over this version of it, or where there is none."""
        asked_at_s = self._clock.monotonic_s()
        if version is None:
            stat = self._store.create(LOCK_KEY, new.to_json())
        else:
            stat = self._store.replace(LOCK_KEY, new.to_json(), if_version=version)
        self._mine = replace(new, taken_ms=new.taken_ms or stat.modified_ms)
        self._version, self.generation = stat.version, new.generation
        self.renewed_at_s = asked_at_s

    def _find_own(self) -> None:
        """The version changed: by a request of ours whose answer was lost, or by a thief."""
        who = "nobody"
        if (found := self._look()) is not None:
            stat, said = found
            if (said.owner, said.generation, said.state) == (self.owner, self.generation, "held"):
                self._version = stat.version
                return
            who = f"{said.owner} (generation {said.generation})"
        self._mine = None
        raise LockLost(
            f"expected to hold {LOCK_KEY} of {self._store.uri} as {self.owner} (generation "
            f"{self.generation}), found that {who} has it now.",
            remedy="Another machine continues this work from its receipts; nothing is lost.",
        )

    def _look(self) -> tuple[Stat, LockRecord] | None:
        """The lock, with a version not younger than its content: a write by it is safe."""
        stat = self._store.stat(LOCK_KEY)
        if stat is None:
            return None
        return stat, LockRecord.from_json(self._store.read(LOCK_KEY), self._store.uri)

    def _require_takeable(
        self, stat: Stat, found: LockRecord, proven_dead: Collection[str]
    ) -> None:
        if found.state == "free" or found.owner == self.owner or found.owner in proven_dead:
            return
        silent_s = (self._store_now_ms() - stat.modified_ms) / 1000
        if silent_s > found.ttl_s + self._stamp_margin_s:
            return
        since_ms = found.taken_ms or stat.modified_ms
        since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="seconds")
        raise WorkspaceBusy(
            f"{self._store.uri} is being worked on by {found.owner}, since {since}.",
            owner=found.owner,
            since_ms=since_ms,
            remedy=f"Wait for it, or interrupt it. If that machine is gone, its lock can be "
            f"taken over {found.ttl_s:g} s after its last sign of life: run again then.",
        )

    def _store_now_ms(self) -> int:
        """The store's clock: the stamp it gives to an object written now."""
        key = f"clock/{uuid4().hex}"
        self._store.create(key, b"")
        try:
            # Asked for, as the lock's stamp was: the answer to a write may be dated otherwise.
            stat = self._store.stat(key)
        finally:
            self._store.delete(key)
        if stat is None:
            raise StoreError(
                f"expected {key} in {self._store.uri} right after writing it, found nothing.",
                remedy="The store must show a write to whoever reads after it.",
            )
        return stat.modified_ms


def keeps_changing(key: str, store: Store) -> StoreError:
    """What to raise when an object had another version at each of `TRIES` looks."""
    return StoreError(
        f"{key} of {store.uri} changed {TRIES} times while it was being written.",
        remedy="Others write there too, or the store shows old versions: find out which, stop it, "
        "and run again.",
    )
