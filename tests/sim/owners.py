"""Machines that want one workspace, in a world where requests, answers and machines get lost.

Exactly one machine moves at a time, from one request to the next, and a seed decides which. A
machine may be killed anywhere, stand still for minutes, lose a request or an answer, and have
a request arrive long after it gave up on it. The bucket checks every write that it accepts.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from intermission.backends.ledger.object_ledger.lock import LOCK_KEY
from intermission.backends.ledger.object_ledger.ownership import Ownership
from intermission.backends.ledger.object_ledger.replica import LEDGER_NAME
from intermission.backends.store.memory import MemoryStore
from intermission.engine.workspace import Workspace
from intermission.errors import AlreadyExists, LockLost, StoreError, WorkspaceBusy
from intermission.ports.clock import Clock
from intermission.ports.store import Stat
from intermission.testing.clock import FakeClock, OwnClock
from intermission.testing.faults import Crashed
from intermission.testing.simulator.actor import Actor

FAULTS = ("request lost", "answer lost", "request late", "killed", "long wait")
_WRITES = ("create", "replace")
_STEPS = 400


class Broken(Exception):
    """What must always hold did not."""


class TextLedger:
    """Stands in for `Snapshots`: a ledger of one line for each change, below its stamp."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def close(self) -> None:
        """Nothing is open."""

    def revision(self) -> int:
        return self._path.stat().st_size

    def save(self, to: Path, stamp: str) -> None:
        to.write_text("\n".join([stamp, *self._path.read_text().split("\n")[1:]]))


def change(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"\n{line}")


class Bucket(MemoryStore):
    """Checks that a lock's generation and the ledger's owner never go back."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.lock_owner = (0, "")
        self.ledger_owner = (0, "")
        self.ledger_lines: list[str] = []
        self.accepted: Counter[str] = Counter()

    def _put(self, key: str, body: bytes) -> Stat:
        if key == LOCK_KEY:
            says = json.loads(body)
            self.lock_owner = _later(self.lock_owner, (says["generation"], says["owner"]))
        if key == LEDGER_NAME:
            stamp, *lines = body.decode().split("\n")
            owner, generation, _ = stamp.rsplit("-", 2)
            self.ledger_owner = _later(self.ledger_owner, (int(generation), owner))
            if lines[: len(self.ledger_lines)] != self.ledger_lines:
                raise Broken(f"{stamp} uploaded a ledger without what was uploaded before")
            self.ledger_lines = lines
        self.accepted[key] += 1
        stat = super()._put(key, body)
        # As on S3, where equal bytes have equal versions.
        stat = replace(stat, version=hashlib.md5(body).hexdigest())
        self._objects[key] = self._objects[key]._replace(stat=stat)
        return stat


def _later(known: tuple[int, str], new: tuple[int, str]) -> tuple[int, str]:
    if new[0] < known[0] or (new[0] == known[0] and new != known):
        raise Broken(f"{new} wrote after {known}")
    return new


class Machine:
    """One process on one machine: it owns the workspace again and again, until it is killed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.owned: Ownership | None = None
        self.working = False
        self.clock = OwnClock(world.clock, world.random.uniform(0, 1e6))
        self.actor = Actor(name, self._live)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """This machine's line to the bucket; every request is a place to lose something."""

        def call(*args: Any, **options: Any) -> Any:
            self.actor.pause(method)
            answer = self.world.call(method, *args, **options)
            if method in _WRITES:
                self.actor.pause(f"{method} answers")
            return answer

        return call

    @property
    def uri(self) -> str:
        return "memory:"

    def _live(self) -> None:
        place = Workspace(self.world.folder / self.name, lambda: self, None, _no_ledger)  # type: ignore[arg-type]
        while True:
            # More often than in earnest, so that uploads meet everything that can happen.
            how: dict[str, Any] = {"on_lost": _ignore, "clock": self.clock, "push_every_s": 5.0}
            self.owned = Ownership(place, self.name, **how)
            with suppress(WorkspaceBusy, LockLost, StoreError):
                self.owned.open()
                self._work(self.owned)
            self.actor.pause("idle")

    def _work(self, owned: Ownership) -> None:
        self.working = True
        try:
            for n in range(self.world.random.randrange(1, 30)):
                self.actor.pause("work")
                change(owned.ledger_path, f"{owned.lock.owner} {n}")
                owned.watch()
                owned.push_if_due()
                owned.renew_if_due()
        finally:
            self.working = False
        owned.close()

    def kill(self) -> None:
        self.actor.kill()
        self.working = False
        if self.owned is not None:
            self.owned._alive.close()  # as the kernel does

    @property
    def believes(self) -> bool:
        return self.working and self.owned is not None and self.owned.lock.is_held


class World:
    """A bucket and its machines, played from a seed."""

    def __init__(self, seed: int, folder: Path, faults: Iterable[str] = FAULTS) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.clock = FakeClock()
        self.bucket = Bucket(self.clock)
        self.faults = tuple(faults)
        self.met: Counter[str] = Counter()
        self.late: list[Callable[[], None]] = []
        self.started = 0
        self.machines = [self._machine() for _ in range(3)]

    def _machine(self) -> Machine:
        self.started += 1
        return Machine(self, f"m{self.started}")

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        act = getattr(self.bucket, method)
        if method in _WRITES and isinstance(args[1], Path):
            args = (args[0], args[1].read_bytes(), *args[2:])
        if self._strikes("request lost", 0.05):
            raise StoreError("the request was lost.")
        if method in _WRITES and self._strikes("request late", 0.05):
            self.late.append(lambda: act(*args, **options))
            raise StoreError("no answer came in time.")
        answer = act(*args, **options)
        if self._strikes("answer lost", 0.05):
            raise StoreError("the answer was lost.")
        return answer

    def _strikes(self, fault: str, chance: float) -> bool:
        if fault not in self.faults or self.random.random() >= chance:
            return False
        self.met[fault] += 1
        return True

    def play(self) -> None:
        try:
            for _ in range(_STEPS):
                self._step()
                if sum(machine.believes for machine in self.machines) > 1:
                    raise Broken("two machines believe that the workspace is theirs")
            self._heal()
        finally:
            for machine in self.machines:
                machine.kill()

    def _step(self) -> None:
        self.clock.advance(self.random.choice((0.0, 0.01, 0.5, 3.0)))
        if self._strikes("long wait", 0.03):
            self.clock.advance(self.random.uniform(20, 90))
        if self.late and self.random.random() < 0.2:
            act = self.late.pop(self.random.randrange(len(self.late)))
            with suppress(AlreadyExists):
                act()
        at = self.random.randrange(len(self.machines))
        if self._strikes("killed", 0.02):
            self.machines[at].kill()
            # The same machine with its files, or one that comes in its place.
            name = self.machines[at].name
            here = self.random.random() < 0.5
            self.machines[at] = Machine(self, name) if here else self._machine()
        machine = self.machines[at]
        machine.actor.resume(self.random.choice((1, 1, 2, 8)))
        if machine.actor.ended:
            raise machine.actor.error or Crashed("a machine stopped by itself")

    def _heal(self) -> None:
        """The faults are over: a new machine gets the workspace, and keeps it."""
        self.faults = ()
        for machine in self.machines:
            machine.kill()
        self.late.clear()
        self.clock.advance(120)
        before = self.bucket.lock_owner[0], self.bucket.accepted[LEDGER_NAME]
        heir = self._machine()
        self.machines = [heir]
        while not (heir.working and heir.believes):
            heir.actor.resume()
            if heir.actor.ended:
                raise heir.actor.error or Crashed("the heir stopped by itself")
        if self.bucket.lock_owner[0] != before[0] + 1:
            raise Broken("one take did not raise the generation by one")
        if self.bucket.accepted[LEDGER_NAME] != before[1] + 1:
            raise Broken("the heir did not fence the ledger off once")


def _ignore(_: Exception) -> None:
    """Nothing to kill: the machine asks for itself."""


def _no_ledger() -> Any:
    raise Broken("nobody opens a ledger here")
