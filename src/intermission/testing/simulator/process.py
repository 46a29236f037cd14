"""A simulated process: an actor whose ways to the store and the ledger can fail it.

What it does is in its subclasses. What can happen to it is here: it can be killed, stopped,
cut off, and led to another ledger while it works.
"""

from __future__ import annotations

import threading
from typing import Any

from intermission.errors import IntermissionError, LedgerError, StoreError
from intermission.testing.simulator.actor import Actor
from intermission.testing.simulator.wire import Wire
from intermission.testing.simulator.world import World


class Process:
    """One process, from its start to its end or its death."""

    def __init__(self, world: World, name: str, *, is_local: bool = True) -> None:
        self.name = name
        self.world = world
        self.place = world.place
        """Where its ledger is."""
        self.is_local = is_local
        """On this machine, where its lock proves its death; else its leases have to expire."""
        self.stalled_until_s = self.sleeping_until_s = self.ticks_at_s = 0.0
        self.faults: dict[str, tuple[str, int]] = {}
        """By wire, whether its next calls fail before or after they took effect, and how many."""
        self.draining = ""
        """Why it has been asked to stop."""
        self.next_step_fails = self.next_completion_repeats = False
        self.store = self.wire("store", world.audit.store_call)
        self.ledger = self.wire("ledger", self.ledger_call(name))
        self.actor = Actor(name, self._run)

    def body(self) -> None:
        """What it is there to do."""
        raise NotImplementedError

    def tick(self) -> None:
        """Let pass, beside its actor, what does not wait for it."""

    @property
    def is_busy(self) -> bool:
        """Whether it is running a task."""
        return False

    def kill_slot(self) -> bool:
        """End the slot, but not the process. False when no task is running."""
        return False

    def _run(self) -> None:
        try:
            self.body()
        except IntermissionError as e:
            self.world.note(f"{self.name} stops: {e}")

    def wire(self, name: str, call: Any) -> Any:
        return Wire(name, call, self.pause, self._suffer)

    def ledger_call(self, who: str) -> Any:
        """How a connection to the ledger it is led to is used."""
        return lambda method, *args, **options: self.world.ledger_call(
            who, self.place, method, *args, **options
        )

    def pause(self, where: str) -> None:
        """An instant at which others may run, and this process may be killed or stopped."""
        self.world.note(f"{self.name} {where}")
        if threading.current_thread() is self.actor.thread:
            self.check()
            self.actor.pause(where)
            self.check()

    def check(self) -> None:
        """Called at every pause, before and after it."""

    def sleep(self, seconds: float) -> None:
        self.sleeping_until_s = self.world.clock.monotonic_s() + seconds
        self.pause("sleeping")

    def _suffer(self, wire: str, when: str) -> None:
        planned, left = self.faults.get(wire, ("", 0))
        if planned == when and left:
            self.faults[wire] = (planned, left - 1)
            self.world.note(f"{self.name} {wire} error")
            kind = StoreError if wire in ("store", "outputs") else LedgerError
            raise kind(f"the {wire} did not answer.", remedy="Run the same command again.")
