"""What an executor of local slots makes of a slot's end."""

from __future__ import annotations

import os
import signal
import socket
from multiprocessing.connection import Connection
from typing import Any, cast

import pytest

from intermission.backends.executor.local import LocalExecutor
from intermission.model import Lease
from intermission.ports.executor import Said, SlotEnded
from intermission.ports.slot_protocol import Batch, Failed, JobContext

LEASE = Lease(1, 1, 1, "job", "step", 0, "key")
FAILED = Failed(LEASE.task_id, "Broken", "it broke", False)


class Reaper:
    """Stands in for the process that starts slots: the test plays the slot."""

    def __init__(self) -> None:
        self._readable, self._signal = os.pipe()
        self._ended: list[tuple[int, int]] = []
        self.slot: Connection

    def fileno(self) -> int:
        return self._readable

    def spawn(self, no: int) -> Connection:
        ours, theirs = socket.socketpair()
        self.slot = Connection(theirs.detach())
        return Connection(ours.detach())

    def dies(self) -> None:
        """The kernel closes what a slot has open when it is killed."""
        self.slot.close()
        self._ended.append((0, int(signal.SIGKILL)))
        os.write(self._signal, b"\0")

    def ended(self) -> list[tuple[int, int]]:
        found, self._ended = self._ended, []
        return found


class Bench:
    def __init__(self) -> None:
        self.reaper = Reaper()
        self.executor = LocalExecutor(cast(Any, self.reaper), 1)
        context: Any = JobContext(
            "job", cast(Any, None), "", cast(Any, None), cast(Any, None), "w", cast(Any, None)
        )
        self.context: JobContext = context

    def start(self) -> int:
        return self.executor.start(self.context, [LEASE], {})

    def read_batch(self) -> None:
        while not isinstance(self.reaper.slot.recv(), Batch):
            pass

    def answer(self) -> None:
        """The slot ends a task."""
        self.start()
        self.read_batch()
        self.reaper.slot.send([FAILED])
        (said,) = self.executor.events()
        assert isinstance(said, Said)

    def last(self) -> SlotEnded:
        *_, ended = self.executor.events()
        assert isinstance(ended, SlotEnded)
        return ended


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_slot_that_dies_over_its_batch_may_have_died_of_it(bench: Bench) -> None:
    bench.answer()
    bench.start()
    bench.read_batch()
    bench.reaper.dies()
    assert bench.last().may_be_the_tasks


def test_a_slot_that_dies_before_it_reads_its_batch_has_not_died_of_it(bench: Bench) -> None:
    bench.answer()
    bench.start()
    bench.reaper.dies()
    assert not bench.last().may_be_the_tasks


def test_nor_has_one_that_was_dead_when_it_was_sent(bench: Bench) -> None:
    bench.answer()
    bench.reaper.slot.close()
    bench.start()
    bench.reaper.dies()
    assert not bench.last().may_be_the_tasks


def test_ends_of_slots_that_never_read_anything_count(bench: Bench) -> None:
    """Else a machine on which no slot can start would try for ever."""
    bench.start()
    bench.reaper.dies()
    assert bench.last().may_be_the_tasks


def test_a_cancel_that_was_not_read_proves_nothing(bench: Bench) -> None:
    bench.answer()
    run = bench.start()
    bench.read_batch()
    bench.executor.cancel(run, LEASE.task_id)
    bench.reaper.dies()
    assert bench.last().may_be_the_tasks


def test_the_last_words_of_a_slot_are_heard(bench: Bench) -> None:
    bench.start()
    bench.read_batch()
    bench.reaper.slot.send([FAILED])
    bench.reaper.dies()
    events = bench.executor.events()
    assert [one.results for one in events if isinstance(one, Said)] == [[FAILED]]
    assert isinstance(events[-1], SlotEnded)
