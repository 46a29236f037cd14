"""A store in memory whose answers can be lost, before or after the request has arrived."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from intermission.backends.store.memory import MemoryStore
from intermission.errors import StoreError
from intermission.ports.clock import Clock
from intermission.ports.store import Stat


class FlakyStore(MemoryStore):
    """Does what it is told once: `lose_answer("replace", "lock.json")`, then all is well."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._faults: dict[tuple[str, str], bool] = {}
        self.is_down = False
        self.written: list[tuple[str, bytes]] = []
        """Every write that arrived."""

    def lose_request(self, method: str, key: str) -> None:
        self._faults[method, key] = False

    def lose_answer(self, method: str, key: str) -> None:
        self._faults[method, key] = True

    def create(self, key: str, data: bytes | Path) -> Stat:
        return self._call("create", key, lambda: super(FlakyStore, self).create(key, data))

    def replace(self, key: str, data: bytes | Path, *, if_version: str | None = None) -> Stat:
        def act() -> Stat:
            return super(FlakyStore, self).replace(key, data, if_version=if_version)

        return self._call("replace", key, act)

    def stat(self, key: str) -> Stat | None:
        if self.is_down:
            raise StoreError("the store is out of reach.")
        return super().stat(key)

    def _call(self, method: str, key: str, act: Callable[[], Stat]) -> Stat:
        arrives = self._faults.pop((method, key), None)
        if self.is_down or arrives is False:
            raise StoreError("the request was lost.")
        stat = act()
        self.written.append((key, self.read(key)))
        if arrives:
            raise StoreError("the answer was lost.")
        return stat
