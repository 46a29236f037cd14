"""A simulated process: actors that live and die together, and whose calls can fail.

What it does is in its subclasses. What can happen to it is here: it can be killed, stopped, cut
off, and led to another ledger while it works.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from intermission.errors import IntermissionError
from intermission.ports.store import Store
from intermission.testing.simulator.actor import Actor
from intermission.testing.simulator.host import Host
from intermission.testing.simulator.wire import Cut, Wire
from intermission.testing.simulator.world import World

_here = threading.local()


def here() -> Process | None:
    """The process that the calling thread is of."""
    return getattr(_here, "process", None)


def open_store() -> Store:
    """The calling process's way to the store. It travels to slots, so it is a function."""
    process = here()
    assert process is not None
    return process.store


def open_outputs() -> Store:
    process = here()
    assert process is not None
    return process.outputs


class Process:
    """One process, from its start to its end or its death."""

    def __init__(self, world: World, name: str, host: Host) -> None:
        self.name = name
        self.world = world
        self.host = host
        self.place = world.place
        """Where its ledger is."""
        self.stalled_until_s = 0.0
        self.dies_at_s = math.inf
        """It was killed, and is not dead yet."""
        self.was_killed = False
        self.cuts: dict[str, Cut] = {}
        """By wire."""
        self.next_completion_repeats = False
        self.store: Any = self.wire("store", world.audit.store_call)
        self.outputs: Any = self.wire("outputs", world.outputs_call)
        self.ledger: Any = self.wire("ledger", self.ledger_call(name))
        self.actors = [self._actor(name, self.body)]
        """The first is its main thread: it ends with it."""

    def body(self) -> None:
        """What it is there to do."""
        raise NotImplementedError

    def _actor(self, name: str, body: Callable[[], None]) -> Actor:
        def run() -> None:
            _here.process, _here.actor = self, actor
            body()

        actor = Actor(name, run)
        return actor

    def beside(self, body: Callable[[], None]) -> Actor:
        """Another thread of it."""
        actor = self._actor(f"{self.name}+", body)
        self.actors.append(actor)
        return actor

    @property
    def ended(self) -> bool:
        return self.actors[0].ended

    @property
    def where(self) -> str:
        return self.actors[0].where

    @property
    def is_busy(self) -> bool:
        """Whether it has tasks."""
        return False

    def kill(self) -> None:
        """End it where it stands, as a power cut would."""
        self.was_killed = self.was_killed or not self.ended
        for actor in self.actors:
            actor.kill()

    def leave(self) -> None:
        """Its main thread came to its end, and the process with it."""
        for actor in self.actors[1:]:
            actor.kill()

    def wire(self, name: str, call: Callable[..., Any]) -> Any:
        return Wire(name, call, self.pause, self._suffer)

    def ledger_call(self, who: str) -> Callable[..., Any]:
        """How a connection to the ledger it is led to is used."""

        def call(method: str, *args: Any, **options: Any) -> Any:
            if method == "complete":
                self.world.sent.append((self.place, args[0]))
                if self.next_completion_repeats:
                    self.next_completion_repeats = False
                    self.world.ledger_call(who, self.place, method, *args, **options)
            return self.world.ledger_call(who, self.place, method, *args, **options)

        return call

    def pause(self, where: str) -> None:
        """An instant at which others may run, and this process may be killed or stopped."""
        self.world.note(f"{self.name} {where}")
        if here() is self:
            _here.actor.pause(where)

    def sleep(self, seconds: float) -> None:
        """Let others run until that time has passed, or something wakes this thread."""
        actor: Actor = _here.actor
        actor.wakes_at_s = self.world.clock.monotonic_s() + seconds
        actor.pause("waiting", sleeps=True)

    def wake(self) -> None:
        """There is something to do for its main thread."""
        self.actors[0].wakes_at_s = 0.0

    def _suffer(self, wire: str, is_late: bool) -> None:
        now_s = self.world.clock.monotonic_s()
        for cuts in (self.cuts, self.world.cuts):
            cut = cuts.get(wire)
            if cut is not None and cut.strikes(now_s, is_late=is_late):
                self.world.note(f"{self.name} {wire} error")
                raise cut.error(f"the {wire} did not answer.", remedy="Run it again.")


class Chore(Process):
    """A command of a person: an error ends it, and the person sees it."""

    def chore(self) -> None:
        raise NotImplementedError

    def body(self) -> None:
        try:
            self.chore()
        except IntermissionError as e:
            self.world.note(f"{self.name} stops: {e}")
