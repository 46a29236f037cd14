"""Simulated slots: the product's slot in an actor, and a reaper that starts and kills them."""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any, cast

from intermission.backends.executor.reaper import ALL
from intermission.backends.executor.slot import Slot
from intermission.model import Lease, Receipt
from intermission.pipeline import Pipeline
from intermission.ports.slot_protocol import Batch, JobContext
from intermission.testing.simulator.process import Process

if TYPE_CHECKING:
    from intermission.testing.simulator.worker import SimulatedWorker

_KILLED = int(signal.SIGKILL)


class Reaper:
    """Stands in for the process between a worker and its slots."""

    def __init__(self, worker: SimulatedWorker) -> None:
        self.slots: dict[int, SimulatedSlot] = {}
        self._worker = worker
        self._ended: list[tuple[int, int]] = []
        self._readable, self._signal = os.pipe()

    def fileno(self) -> int:
        return self._readable

    def spawn(self, no: int) -> _WorkersEnd:
        ours, theirs = Pipe()
        worker = self._worker
        slot = SimulatedSlot(worker, f"{worker.name}.{no}", theirs)
        self.slots[no] = slot
        worker.started(slot)
        return _WorkersEnd(ours, slot)

    def kill(self, no: int) -> None:
        """It is dead soon, and may speak until then."""
        if (slot := self.slots.get(no)) is not None:
            slot.dies_in(self._worker.world.random.choice([0.0, 0.0, 0.1, 0.5]))

    def ended(self) -> list[tuple[int, int]]:
        found, self._ended = self._ended, []
        if found:
            os.read(self._readable, 512)
        return found

    def is_dead(self, slot: SimulatedSlot) -> None:
        """The simulation killed a slot."""
        for no in [no for no, known in self.slots.items() if known is slot]:
            del self.slots[no]
            self._tell(no)

    def replace(self) -> None:
        """The reaper was killed, its slots are dead, and another takes its place."""
        for slot in self.slots.values():
            slot.kill()
        self.slots.clear()
        self._tell(ALL)

    def _tell(self, no: int) -> None:
        self._ended.append((no, _KILLED))
        os.write(self._signal, b"\0")
        self._worker.wake()

    def close(self) -> None:
        """The worker is through with them. One that was killed kills nobody."""
        if not self._worker.was_killed:
            for slot in self.slots.values():
                slot.kill()

    def release(self) -> None:
        """The worker is gone."""
        os.close(self._readable)
        os.close(self._signal)


class _WorkersEnd:
    """A connection of which every message wakes the slot."""

    def __init__(self, connection: Connection, slot: SimulatedSlot) -> None:
        self._slot = slot
        self.fileno, self.poll = connection.fileno, connection.poll
        self.recv, self.close, self._send = connection.recv, connection.close, connection.send

    def send(self, message: Any) -> None:
        if isinstance(message, Batch):
            self._slot.handed(message.leases)
        self._send(message)
        self._slot.wake()


class _SlotsEnd:
    """A connection of which every message wakes the worker, and where waiting lets others run."""

    def __init__(self, connection: Connection, slot: SimulatedSlot, heard: Callable[[], None]):
        self._connection = connection
        self._slot = slot
        self._heard = heard

    def poll(self) -> bool:
        return self._connection.poll()

    def recv(self) -> Any:
        while not self._connection.poll():
            self._slot.sleep(math.inf)
        return self._connection.recv()

    def send(self, message: Any) -> None:
        self._slot.pause(f"says {type(message[0]).__name__} and {len(message) - 1} more")
        self._connection.send(message)
        self._heard()


class SimulatedSlot(Process):
    """The process of one slot: the product's own code."""

    def __init__(self, worker: SimulatedWorker, name: str, connection: Connection) -> None:
        super().__init__(worker.world, name, worker.host)
        self.worker = worker
        self.next_step_fails = False
        self._batch: Sequence[Lease] = ()
        """What it was given last."""
        self._lease: Lease | None = None
        self.task_key = ""
        self._stood: Receipt | None = None
        """The receipt that its task had before the attempt looked."""
        self._slot = Slot(
            cast(Any, _SlotsEnd(connection, self, worker.wake)),
            cast(Any, _NoLog()),
            monotonic_s=self.host.clock.monotonic_s,
            open_pipeline=self._open_pipeline,
        )
        self.store = self.wire("store", self._store_call)

    def body(self) -> None:
        try:
            self._slot.run()
        except OSError:  # nobody is at the other end
            if not self.worker.was_killed and self.dies_at_s == math.inf:
                raise

    @property
    def is_busy(self) -> bool:
        return self.actors[0].where != "waiting"

    def handed(self, leases: Sequence[Lease]) -> None:
        self._batch = leases
        self.world.blame.handed(leases)

    def is_their_own(self) -> None:
        """What it was given fails with it."""
        self.world.blame.is_their_own(self._batch)

    def dies_in(self, seconds: float) -> None:
        self.dies_at_s = min(self.dies_at_s, self.world.clock.monotonic_s() + seconds)

    def receipt(self) -> Receipt | None:
        """The sound receipt that its task has."""
        return self._lease and self.world.audit.standing(self._lease.step, self.task_key)

    def has_other_receipt(self, than: Receipt | None) -> bool:
        return self.receipt() not in (None, than)

    def _open_pipeline(self, context: JobContext) -> Pipeline:
        return self.host.pipeline(context.job)

    def pause(self, where: str) -> None:
        lease = self._slot.lease
        if lease is not self._lease and lease is not None:
            self._lease, self.task_key = lease, lease.key
            self._stood = self.world.audit.standing(lease.step, lease.key)
            self.world.blame.begun(lease)
        super().pause(where)

    def _store_call(self, method: str, *args: Any, **options: Any) -> Any:
        """The first look at a receipt tells the key under which its task ends."""
        if method == "read" and self._lease is not None:
            kind, _, rest = str(args[0]).partition(f"/{self._lease.step}/")
            if kind == "receipts" and rest != f"{self.task_key}.json":
                self.task_key = rest.removesuffix(".json")
                self._stood = self.world.audit.standing(self._lease.step, self.task_key)
        return self.world.audit.store_call(method, *args, **options)

    def executes(self) -> None:
        """A step is about to run."""
        assert self._lease is not None
        self.world.audit.executing(self._lease.step, self.task_key, self._stood)
        self.host.use()
        if self.next_step_fails:
            self.next_step_fails = False
            self.world.blame.is_their_own([self._lease])
            raise RuntimeError("it failed this once")


class _NoLog:
    """A task's log that nobody reads."""

    logger = logging.Logger("simulated")

    def begin(self, context: JobContext, lease: Lease) -> None: ...

    def end(self) -> None: ...

    def write(self, text: str) -> int:
        return len(text)

    def warnings(self) -> tuple[str, ...]:
        return ()

    def close_last(self) -> None: ...
