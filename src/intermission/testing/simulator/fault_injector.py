"""What goes wrong in a simulation: each method is one kind of fault, told who suffers it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from intermission.engine import completion
from intermission.testing.simulator.maintenance_actor import Collector, Rebuilder
from intermission.testing.simulator.process import Process
from intermission.testing.simulator.wire import Wire
from intermission.testing.simulator.worker import LEASE_TTL_S, Worker
from intermission.testing.simulator.world import World

HOUR_S = 3600.0


FAULTS = (
    "crash",
    "slot_crash",
    "stall",
    "step_error",
    "store_error",
    "ledger_error",
    "deaf_keeper",
    "drain",
    "repeat",
    "echo",
    "wall_jump",
    "lease_jump",
    "corrupt",
    "cancel",
    "lose",
    "restore",
    "sweep",
)


class Mischief:
    """Faults, picked by a seed. Each answers whether there was anything to break."""

    def __init__(
        self, world: World, random: Random, start: Callable[[type[Process]], object]
    ) -> None:
        self._world = world
        self._random = random
        self._start = start
        self._copies: list[Any] = []
        self.processes: list[Process] = []
        """All that ever started, in order."""

    def crash(self, victim: Process) -> bool:
        victim.actor.kill()
        return True

    def slot_crash(self, victim: Process) -> bool:
        return victim.kill_slot()

    def stall(self, victim: Process) -> bool:
        """It stops for longer than its leases live, mostly, and wakes up a zombie."""
        if not victim.is_busy and self._random.random() < 0.8:
            return False
        stopped_s = LEASE_TTL_S * self._random.uniform(0.8, 3.0)
        victim.stalled_until_s = self._world.clock.monotonic_s() + stopped_s
        # Once awake, its keeper may notice at once, or after it has gone on for a while.
        victim.ticks_at_s = victim.stalled_until_s + self._random.choice([0.0, 2.0, 8.0])
        return True

    def step_error(self, victim: Process) -> bool:
        victim.next_step_fails = True
        return True

    def store_error(self, victim: Process) -> bool:
        wire = self._random.choice(["store", "store", "outputs"])
        victim.faults[wire] = self._random.choice(["before", "after"]), 1
        return True

    def ledger_error(self, victim: Process) -> bool:
        victim.faults["ledger"] = self._random.choice(["before", "after"]), 1
        return True

    def deaf_keeper(self, victim: Process) -> bool:
        """Its keeper gets no answers for a while, perhaps for longer than its leases live."""
        times = self._random.randint(1, 12)
        victim.faults["keeper"] = self._random.choice(["before", "after"]), times
        return True

    def drain(self, victim: Process) -> bool:
        victim.draining = "SIGTERM"
        return True

    def repeat(self, victim: Process) -> bool:
        """It will send a completion twice, as one who did not get the answer does."""
        victim.next_completion_repeats = True
        return True

    def echo(self, _: Process) -> bool:
        """A completion that was sent long ago arrives once more."""
        if not self._world.sent:
            return False
        world = self._world
        sender, lease, finished = self._random.choice(world.sent)
        ledger = partial(world.ledger_call, "network", sender.place)
        wire: Any = Wire("ledger", ledger, lambda _: None, lambda *_: None)
        completion.complete(wire, world.store, world.job, [(lease, finished)], world.scratch)
        return True

    def wall_jump(self, _: Process) -> bool:
        self._world.clock.jump_wall(self._random.choice([-HOUR_S, HOUR_S]))
        return True

    def lease_jump(self, _: Process) -> bool:
        """The ledger's clock leaps over everybody's leases."""
        self._world.clock.advance(LEASE_TTL_S * self._random.uniform(0.8, 1.5))
        return True

    def corrupt(self, _: Process) -> bool:
        """A byte of a finished task's file is flipped, or the file is gone."""
        files = self._world.audit.files()
        if not files:
            return False
        key = self._random.choice(files)
        if self._random.random() < 0.3:
            self._world.store.delete(key)
        else:
            data = bytearray(self._world.store.read(key))
            data[self._random.randrange(len(data))] ^= 1
            self._world.store.replace(key, bytes(data))
        self._world.audit.touched(key)
        return True

    def cancel(self, victim: Process) -> bool:
        """A person cancels the job, and thinks better of it."""
        ledger = self._world.ledger("person", victim.place)
        return ledger.cancel(self._world.job.key, reason="a person said so")

    def lose(self, _: Process) -> bool:
        """The ledger is deleted. Somebody may rebuild it, or just run the same command again."""
        self._lead_to(self._world.ledgers.create())
        if self._random.random() < 0.7:
            self._start(Rebuilder)
        return True

    def restore(self, _: Process) -> bool:
        """The ledger as it was some time ago is put in the place of the one there is."""
        if not self._copies or self._random.random() < 0.5:
            self._copies.append(self._world.ledgers.copy(self._world.place))
            return False
        self._lead_to(self._world.ledgers.copy(self._random.choice(self._copies)))
        return True

    def _lead_to(self, place: Any) -> None:
        """Processes at work go on in the ledger they opened, or find themselves in the new one."""
        self._world.place = place
        if self._random.random() < 0.5:
            for process in self.processes:
                if isinstance(process, Worker):
                    process.place = place

    def sweep(self, _: Process) -> bool:
        self._start(Collector)
        return True
