"""What goes wrong in a simulation: each method is one kind of fault, told who suffers it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from intermission.errors import (
    EnvironmentFault,
    LedgerError,
    StalePlans,
    StoreError,
    StoreUnavailable,
)
from intermission.testing.simulator.host import Host
from intermission.testing.simulator.maintenance_actor import Collector, Rebuilder
from intermission.testing.simulator.process import Process
from intermission.testing.simulator.sample_pipeline import NEWER_TALK, NOTE, TALK
from intermission.testing.simulator.slots import SimulatedSlot
from intermission.testing.simulator.wire import Cut
from intermission.testing.simulator.worker import LEASE_TTL_S, SimulatedWorker
from intermission.testing.simulator.world import World

HOUR_S = 3600.0
STALL_MAX_S = 3 * LEASE_TTL_S
SLOT_STALL_MAX_S = 12 * LEASE_TTL_S

FAULTS = (
    "crash",
    "slot_crash",
    "reaper_crash",
    "stall",
    "slot_stall",
    "step_error",
    "store_error",
    "store_away",
    "ledger_error",
    "server_crash",
    "cut_off",
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
    "scratch_full",
    "disk_error",
    "missing_package",
    "no_device",
    "upgrade",
)
AIMED = frozenset({"overtake"})
"""Faults that bring about what chance seldom does: looked for by them, a bug is soon found."""
CRITICAL = ("after-artifacts", "before-receipt", "mid-quarantine", "before-complete")
"""Points at which faults do the most harm."""
UPGRADES = frozenset({"upgrade"})
"""Faults that need a fleet whose hosts have not all the same."""


def _stop_machine(worker: SimulatedWorker, until_s: float) -> None:
    for one in (worker, *worker.reaper.slots.values()):
        one.stalled_until_s = until_s


class FaultInjector:
    """Faults, picked by a seed. Each answers whether there was anything to break."""

    def __init__(
        self,
        world: World,
        random: Random,
        hosts: list[Host],
        start: Callable[[Callable[[World, str, Host], Process]], object],
    ) -> None:
        self._world = world
        self._random = random
        self._hosts = hosts
        self._start = start
        self._copies: list[Any] = []
        self._overtaken: list[tuple[SimulatedSlot, Callable[[], bool]]] = []
        """Slots that stand still, each until this is true."""
        self.processes: list[Process] = []
        """All that ever started, in order."""

    def crash(self, victim: Process) -> bool:
        """A process is killed; a slot dies by itself only of what it runs."""
        if isinstance(victim, SimulatedSlot):
            return False
        victim.kill()
        return True

    def slot_crash(self, victim: Process) -> bool:
        """A slot dies of the task it runs: out of memory, say."""
        if not isinstance(victim, SimulatedSlot) or not victim.is_busy:
            return False
        victim.is_their_own()
        victim.kill()
        return True

    def reaper_crash(self, victim: Process) -> bool:
        if not isinstance(victim, SimulatedWorker) or not victim.reaper.slots:
            return False
        victim.reaper.replace()
        return True

    def stall(self, victim: Process) -> bool:
        """It stops for longer than its leases live, mostly, and wakes up a zombie."""
        if not self._is_worth_it(victim):
            return False
        until_s = self._now_s() + self._random.uniform(0.8 * LEASE_TTL_S, STALL_MAX_S)
        victim.stalled_until_s = until_s
        worker = victim.worker if isinstance(victim, SimulatedSlot) else victim
        if isinstance(worker, SimulatedWorker) and (
            worker is not victim or self._random.random() < 0.5
        ):
            _stop_machine(worker, until_s)
        return True

    def overtake(self, victim: Process) -> bool:
        """A slot stops with its machine, and goes on alone when another has overtaken it."""
        if not isinstance(victim, SimulatedSlot) or any(
            one is victim for one, _ in self._overtaken
        ):
            return False
        if victim.where.endswith("before-receipt"):
            condition = partial(self._has_rival, victim)
        elif victim.where.endswith("mid-quarantine"):
            condition = partial(victim.has_other_receipt, victim.receipt())
        else:
            return False
        _stop_machine(victim.worker, self._now_s() + STALL_MAX_S)
        self._overtaken.append((victim, condition))
        return True

    def _has_rival(self, victim: SimulatedSlot) -> bool:
        """Whether another is about to commit the same task; it lets the victim go first."""
        others = [one for one in self.processes if isinstance(one, SimulatedSlot)]
        for one in others:
            is_rival = one is not victim and one.task_key == victim.task_key and not one.ended
            if is_rival and one.where.endswith("before-receipt"):
                one.stalled_until_s = self._now_s() + LEASE_TTL_S
                return True
        return False

    def look_after(self) -> None:
        """Wake the slots that have been overtaken."""
        for victim, is_overtaken in list(self._overtaken):
            if victim.ended or victim.stalled_until_s <= self._now_s() or is_overtaken():
                victim.stalled_until_s = 0.0
                self._overtaken.remove((victim, is_overtaken))

    def slot_stall(self, victim: Process) -> bool:
        """A slot stops alone: its lease is renewed all the while."""
        if not isinstance(victim, SimulatedSlot) or not self._is_worth_it(victim):
            return False
        stopped_s = self._random.uniform(LEASE_TTL_S, SLOT_STALL_MAX_S)
        victim.stalled_until_s = self._now_s() + stopped_s
        return True

    def _is_worth_it(self, victim: Process) -> bool:
        """Some stop anywhere, and most at a critical point."""
        return victim.where.endswith(CRITICAL) or self._random.random() < 0.1

    def _now_s(self) -> float:
        return self._world.clock.monotonic_s()

    def step_error(self, victim: Process) -> bool:
        if not isinstance(victim, SimulatedSlot):
            return False
        victim.next_step_fails = True
        return True

    def store_error(self, victim: Process) -> bool:
        """One call fails, whether it took effect or not."""
        wire = self._random.choice(["store", "store", "outputs"])
        kind = self._random.choice([StoreError, StoreUnavailable])
        victim.cuts[wire] = Cut(kind, self._random.random() < 0.5, calls=1)
        return True

    def store_away(self, _: Process) -> bool:
        """Nobody reaches the store for a while."""
        self._world.cuts["store"] = self._for_a_while(StoreUnavailable)
        return True

    def ledger_error(self, victim: Process) -> bool:
        victim.cuts["ledger"] = Cut(LedgerError, self._random.random() < 0.5, calls=1)
        return True

    def server_crash(self, _: Process) -> bool:
        """Nobody reaches the ledger for a while: its server was killed and comes back."""
        cut = self._for_a_while(LedgerError)
        self._world.cuts |= {"ledger": cut, "renewals": cut}
        return True

    def cut_off(self, victim: Process) -> bool:
        """One process gets no answers for a while, perhaps for longer than its leases live."""
        cut = self._for_a_while(LedgerError)
        victim.cuts["renewals"] = cut
        if self._random.random() < 0.5:
            victim.cuts["ledger"] = cut
        return True

    def _for_a_while(self, error: type[EnvironmentFault]) -> Cut:
        until_s = self._now_s() + self._random.uniform(0.5, STALL_MAX_S)
        return Cut(error, self._random.random() < 0.3, until_s=until_s)

    def drain(self, victim: Process) -> bool:
        if not isinstance(victim, SimulatedWorker):
            return False
        victim.drain()
        return True

    def repeat(self, victim: Process) -> bool:
        """It will send a completion twice, as one who did not get the answer does."""
        if not isinstance(victim, SimulatedWorker):
            return False
        victim.next_completion_repeats = True
        return True

    def echo(self, _: Process) -> bool:
        """A completion that was sent long ago arrives once more."""
        if not self._world.sent:
            return False
        place, done = self._random.choice(self._world.sent)
        place = self._random.choice([place, self._world.place])  # or in the place of that ledger
        with suppress(StalePlans):
            self._world.ledger_call("network", place, "complete", done)
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
        self._world.audit.struck(key)
        return True

    def cancel(self, victim: Process) -> bool:
        """A person cancels a job, and thinks better of it."""
        ledger = self._world.ledger("person", victim.place)
        job = self._random.choice(self._world.jobs)
        return ledger.cancel(job.key, reason="a person said so")

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
        self._world.lead_to(place)
        if self._random.random() < 0.5:
            for process in self.processes:
                if isinstance(process, SimulatedWorker):
                    process.place = place

    def sweep(self, _: Process) -> bool:
        self._start(Collector)
        return True

    def scratch_full(self, victim: Process) -> bool:
        return self._break(victim.host, partial(OSError, errno.ENOSPC, "no space left on device"))

    def disk_error(self, victim: Process) -> bool:
        number = self._random.choice([errno.EIO, errno.EROFS])
        return self._break(victim.host, partial(OSError, number, "the disk is broken"))

    def missing_package(self, victim: Process) -> bool:
        return self._break(victim.host, partial(ModuleNotFoundError, "no module named 'speech'"))

    def no_device(self, victim: Process) -> bool:
        return self._break(victim.host, partial(EnvironmentFault, "the GPU is lost."))

    def _break(self, host: Host, trouble: Callable[[], Exception]) -> bool:
        """Whatever starts on a machine meets this, for a while."""
        host.breaks(trouble, self._random.uniform(1.0, 100.0))
        return True

    def upgrade(self, victim: Process) -> bool:
        """Another version is installed on a machine, or a pipeline removed.

        The workers there stop, if they are asked to; others go on with what they know, and their
        next slots load what they do not expect.
        """
        host = victim.host
        change = self._random.choice(
            [
                partial(host.install, TALK),
                partial(host.install, NEWER_TALK),
                partial(host.install, NOTE),
                partial(host.remove, NOTE.name),
                partial(host.remove, TALK.name),
            ]
        )
        change()
        if self._random.random() < 0.5:
            for process in self.processes:
                if isinstance(process, SimulatedWorker) and process.host is host:
                    process.drain()
        return True
