"""Slots as processes of this machine, forked by the reaper when they are first needed."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from intermission.backends.executor.messages import messages
from intermission.backends.executor.reaper import ALL, Reaper
from intermission.model import Lease
from intermission.ports.executor import Said, SlotEnded
from intermission.ports.slot_protocol import (
    Cancel,
    Inputs,
    JobContext,
    Outcome,
    Progress,
    Results,
)


@dataclass
class _Slot:
    """One child process, as its worker sees it."""

    no: int
    connection: Connection
    run: int = 0
    unanswered: int = 0
    """How many tasks of its batch have not ended."""
    has_answered: bool = False
    """It has said something of a task: it can run some."""
    was_sent_cancel: bool = False
    is_unread: bool = False
    """It ended before it had read its batch."""
    killed: bool = False
    known: set[str] = field(default_factory=set[str])
    """The names of the contexts it was sent."""


class LocalExecutor:
    """Up to `limit` slots."""

    def __init__(self, reaper: Reaper, limit: int) -> None:
        self._reaper = reaper
        self._limit = limit
        self._slots: dict[int, _Slot] = {}
        self._slots_made = self._runs = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(reaper, selectors.EVENT_READ)

    @property
    def idle(self) -> int:
        return self._limit - sum(one.unanswered > 0 or one.killed for one in self._all())

    def _all(self) -> list[_Slot]:
        return list(self._slots.values())

    def start(
        self, context: JobContext, leases: Sequence[Lease], inputs: Mapping[int, Inputs]
    ) -> int:
        slot = self._take()
        slot.was_sent_cancel = False
        try:
            if context.name not in slot.known:
                slot.connection.send(context)
                slot.known.add(context.name)
            for message in messages(context.name, leases, inputs):
                slot.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):  # its end will be reported
            slot.is_unread = True
        self._runs += 1
        slot.run, slot.unanswered = self._runs, len(leases)
        return slot.run

    def _take(self) -> _Slot:
        """An idle slot, a new one if there is none."""
        for slot in self._slots.values():
            if not slot.unanswered and not slot.killed:
                return slot
        slot = _Slot(self._slots_made, self._reaper.spawn(self._slots_made))
        self._slots_made += 1
        self._slots[slot.no] = slot
        self._selector.register(slot.connection, selectors.EVENT_READ, slot)
        return slot

    def _running(self, run: int) -> _Slot | None:
        return next((one for one in self._all() if one.run == run and one.unanswered), None)

    def cancel(self, run: int, task_id: int) -> None:
        if (slot := self._running(run)) is not None:
            slot.was_sent_cancel = True
            with suppress(OSError):
                slot.connection.send(Cancel(task_id))

    def kill(self, run: int) -> None:
        if (slot := self._running(run)) is not None and not slot.killed:
            slot.killed = True
            self._reaper.kill(slot.no)

    def fileno(self) -> int:
        return self._selector.fileno()

    def events(self) -> list[Said | SlotEnded]:
        found: list[Said | SlotEnded] = []
        ended = False
        for key, _ in self._selector.select(0):
            if key.data is None:
                ended = True
            elif said := self._hear(key.data):
                found.append(Said(key.data.run, said))
        if ended:
            for no, status in self._reaper.ended():
                if no == ALL:
                    found += self._lost_all()
                elif no in self._slots:
                    found += self._ended(self._slots.pop(no), _how(status))
        return found

    def _lost_all(self) -> list[Said | SlotEnded]:
        """The reaper was killed, and with it every slot; another has taken its place."""
        found: list[Said | SlotEnded] = []
        for slot in self._all():
            self._reaper.kill(slot.no)  # it may be the new one's, asked for in between
            found += self._ended(slot, "the reaper was killed", may_be_the_tasks=False)
        self._slots.clear()
        return found

    def _ended(
        self, slot: _Slot, how: str, *, may_be_the_tasks: bool = True
    ) -> list[Said | SlotEnded]:
        last: list[Outcome | Progress] = []
        with suppress(OSError):
            while slot.connection.poll() and (said := self._hear(slot)):
                last += said
        self._close(slot)
        # One that has yet to end a task may be unable to: then its ends have to count.
        may_be_the_tasks &= not (slot.is_unread and slot.has_answered)
        return [
            *([Said(slot.run, last)] if last else []),
            SlotEnded(slot.run, how, may_be_the_tasks),
        ]

    def _hear(self, slot: _Slot) -> Results:
        """The next message of a slot that has one, or whose end of the connection is closed."""
        try:
            results: Results = slot.connection.recv()
        except (EOFError, OSError) as e:  # the reaper will say how it ended
            # The kernel resets a connection whose other end is closed with bytes unread.
            if isinstance(e, ConnectionResetError) and not slot.was_sent_cancel:
                slot.is_unread = True
            with suppress(KeyError):
                self._selector.unregister(slot.connection)
            return []
        slot.has_answered = True
        slot.unanswered -= sum(not isinstance(one, Progress) for one in results)
        return results

    def _close(self, slot: _Slot) -> None:
        with suppress(KeyError):
            self._selector.unregister(slot.connection)
        slot.connection.close()

    def close(self) -> None:
        self._reaper.close()
        for slot in self._all():
            self._close(slot)
        self._slots.clear()
        self._selector.close()


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return f"the slot was killed by {signal.Signals(number).name}{hint}"
    return f"the slot exited with status {os.WEXITSTATUS(status)}"
