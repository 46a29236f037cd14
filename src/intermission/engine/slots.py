"""The worker's slots: starting them, handing them batches, hearing from them, killing them.

With a batch that may be recalled, a slot gets a token for each task through a pipe, and reads
one before it begins a task. The worker may read too: a token is a task's, whoever reads it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle

from intermission.engine.messages import Batch, Cancel, JobContext
from intermission.engine.outcome import Ends, Progressed, Trouble
from intermission.engine.reaper import Reaper
from intermission.model import Completion, Lease

Ended = tuple[Lease, Completion, float, tuple[str, ...]]
"""A task that ended well, how long it took, and what it warned of."""


@dataclass
class Slot:
    """One child process, as its worker sees it."""

    no: int
    connection: Connection
    tokens: tuple[int, int]
    """Both ends of the pipe."""
    orders: str = ""
    """The name of the orders its batch runs under."""
    batch: dict[int, Lease] = field(default_factory=dict[int, Lease])
    """What it was given and has not answered for, by task; all of one step."""
    started_s: float = 0.0
    deadline_s: float | None = None
    verdict: str = ""
    """Why the worker is about to kill it; its leases then go back instead of counting."""
    killed: bool = False
    known: set[str] = field(default_factory=set[str])

    @property
    def busy(self) -> bool:
        return bool(self.batch)

    @property
    def first(self) -> Lease:
        """The task it is running, or about to."""
        return next(iter(self.batch.values()))

    def finished(self, ends: Ends, now_s: float) -> list[Ended]:
        """Take tasks that ended well off the batch."""
        leases = self.answered([done.task_id for done in ends.completions], now_s)
        return [
            (lease, done, took_s, warnings)
            for lease, done, took_s, warnings in zip(leases, *ends, strict=True)
            if lease is not None
        ]

    def answered(self, task_ids: Sequence[int], now_s: float) -> list[Lease | None]:
        """Take tasks that ended off the batch; their leases, None for one that was not on it."""
        leases = [self.batch.pop(id, None) for id in task_ids]
        if self.deadline_s is not None and not self.verdict:  # the next has as long again
            self.deadline_s += now_s - self.started_s
        self.started_s = now_s
        if not self.batch and not self.killed:
            self.verdict, self.deadline_s = "", None
        return leases

    def cancel(self, task_id: int) -> None:
        with suppress(OSError):
            self.connection.send(Cancel(task_id))

    def recall(self) -> list[Lease]:
        """Take back what it has not begun of its batch."""
        try:
            count = len(os.read(self.tokens[0], len(self.batch)))
        except BlockingIOError:
            return []
        return [self.batch.pop(id) for id in list(self.batch)[-count:]]

    def close(self) -> None:
        self.connection.close()
        for end in self.tokens:
            os.close(end)


class Slots:
    """Up to `limit` slots, forked by the reaper when they are first needed."""

    def __init__(self, reaper: Reaper, limit: int) -> None:
        self._reaper = reaper
        self._limit = limit
        self._slots: dict[int, Slot] = {}
        self._next = 0

    def __iter__(self) -> Iterator[Slot]:
        return iter(list(self._slots.values()))

    def running(self, orders: str, task_id: int) -> Slot | None:
        """The slot that has a task on its batch; for any thread."""
        return next((it for it in self if it.orders == orders and task_id in it.batch), None)

    @property
    def idle(self) -> int:
        """How many more batches could be handed out now."""
        return self._limit - sum(slot.busy or slot.killed for slot in self._slots.values())

    @property
    def busy(self) -> bool:
        return any(slot.busy for slot in self._slots.values())

    def take(self) -> Slot:
        """An idle slot, a new one if there is none."""
        for slot in self._slots.values():
            if not slot.busy and not slot.killed:
                return slot
        slot = Slot(self._next, self._reaper.spawn(self._next), os.pipe())
        os.set_blocking(slot.tokens[0], False)
        with suppress(OSError):  # if it is dead by now, its end will be reported
            send_handle(slot.connection, slot.tokens[0], 0)
        self._next += 1
        self._slots[slot.no] = slot
        return slot

    def send(self, slot: Slot, orders: JobContext, leases: list[Lease], now_s: float) -> None:
        """Hand a batch to a slot. If it is dead by now, its end will be reported."""
        spec = orders.job.step(leases[0].step)
        counted = len(leases) if spec.durable and not spec.batch_by else 0
        slot.orders = orders.name
        slot.batch = {lease.task_id: lease for lease in leases}
        slot.started_s = now_s
        slot.deadline_s = None if spec.timeout_s is None else now_s + spec.timeout_s
        written = 0
        while written < counted:
            written += os.write(slot.tokens[1], bytes(counted - written))
        with suppress(BrokenPipeError, ConnectionResetError):
            if orders.name not in slot.known:
                slot.connection.send(orders)
                slot.known.add(orders.name)
            slot.connection.send(Batch(orders.name, leases, counted > 0))

    def hear(self, slot: Slot) -> list[Ends | Trouble | Progressed]:
        """Everything a slot has said so far."""
        said: list[Ends | Trouble | Progressed] = []
        with suppress(EOFError, OSError):  # the reaper will say how it ended
            while slot.connection.poll():
                said += slot.connection.recv()
        return said

    def kill(self, slot: Slot, verdict: str) -> None:
        if not slot.killed:
            slot.verdict, slot.killed, slot.deadline_s = verdict, True, None
            self._reaper.kill(slot.no)

    def kill_now(self, slot: Slot) -> None:
        """For another thread: kill without touching the books; the end will be reported."""
        self._reaper.kill(slot.no)

    def ended(self) -> list[tuple[Slot, str]]:
        """Slots that ended since last asked, each with how it ended."""
        return [(self._slots.pop(no), _how(status)) for no, status in self._reaper.ended()]


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return f"the slot was killed by {signal.Signals(number).name}{hint}"
    return f"the slot exited with status {os.WEXITSTATUS(status)}"
