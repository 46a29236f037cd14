"""How soon others take over what a killed worker held, at the settings that nobody changed."""

from __future__ import annotations

from itertools import count, product
from pathlib import Path
from typing import Any, cast

import pytest

from intermission.backends.work_source.open_job import OpenJob
from intermission.backends.work_source.shared_jobs import SharedJobs
from intermission.engine.lease_renewer import TICK_S, LeaseRenewer
from intermission.engine.worker import POLL_S, Worker
from intermission.engine.workspace import Workspace
from intermission.model import Lease, TaskState
from intermission.ports.slot_protocol import JobContext
from intermission.settings import Settings
from intermission.testing.clock import FakeClock, OwnClock
from intermission.testing.jobs import job, step, submit
from intermission.testing.scratch_ledger import scratch_ledger

PROMISE_S = 60.0
START_S = 2.0
"""Left for a slot to be started and to be handed the task."""


class OneLongTask:
    """An executor with one slot, whose task never ends."""

    def __init__(self) -> None:
        self.idle = 1

    def start(self, context: JobContext, leases: list[Lease], inputs: object) -> int:
        self.idle = 0
        return 1


class Machine:
    """A worker of a fleet, one turn of its loop at a time."""

    def __init__(self, name: str, machines: Machines, clock: OwnClock) -> None:
        self.name = name
        source = SharedJobs(
            machines.ledger, lambda _: machines.open(name), name, machines.settings, clock
        )
        self.renewer = LeaseRenewer(
            name,
            clock,
            lease_ttl_s=source.lease_ttl_s,
            renew_every_s=machines.settings.renew_every_s,
        )
        self._worker = Worker(source, self.renewer, cast(Any, OneLongTask()), clock, drain_s=0)

    def turn(self) -> None:
        self._worker._turn()


class Machines:
    """Machines of a fleet with clocks of their own, and the ledger between them."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = FakeClock()
        self.ledger = scratch_ledger(self.clock)
        self.job = submit(self.ledger, job(step("only")))
        self.settings = Settings(**settings)
        self._place = Workspace(folder, _nothing, None, lambda: self.ledger)
        self._names = (f"machine-{no}" for no in count())

    def open(self, worker: str) -> OpenJob:
        nothing = cast(Any, None)
        return OpenJob(self._place, self.job, self.ledger, nothing, worker, self.settings)

    def worker(self, offset_s: float) -> Machine:
        return Machine(next(self._names), self, OwnClock(self.clock, offset_s))

    def holds(self, worker: Machine) -> bool:
        (row,) = self.ledger.tasks(self.job.key)
        return row.worker == worker.name and row.state in (TaskState.LEASED, TaskState.RUNNING)

    def work(self, worker: Machine, seconds: float) -> None:
        """Let a worker live for so long: its loop, and beside it the renewer of its leases."""
        for n in range(round(seconds / POLL_S)):
            worker.turn()
            if n % round(TICK_S / POLL_S) == 0:
                worker.renewer.tick()
            self.clock.advance(POLL_S)


def _nothing() -> Any:
    raise AssertionError("no store is needed here")


def taken_over_after_s(machines: Machines, killed_after_s: float, phase_s: float) -> float:
    """The time from the kill of one worker until another, idle one holds its task."""
    first, second = machines.worker(1e6), machines.worker(5.0)
    machines.work(first, killed_after_s)
    assert machines.holds(first)
    killed_s = machines.clock.monotonic_s()
    machines.clock.advance(phase_s)
    while not machines.holds(second):
        machines.work(second, POLL_S)
        assert machines.clock.monotonic_s() - killed_s < 2 * PROMISE_S, "it never is"
    return machines.clock.monotonic_s() - killed_s


def test_within_a_minute_whenever_the_kill_comes(tmp_path: Path) -> None:
    kills = [*range(1, 34), *(n * POLL_S for n in range(60, 70))]  # right after a renewal, too
    phases = (0.0, 0.1, 2.6, 4.9)
    waits = {
        (kill_s, phase_s): taken_over_after_s(Machines(tmp_path), kill_s, phase_s)
        for kill_s, phase_s in product(kills, phases)
    }
    worst = max(waits, key=lambda at: waits[at])
    assert waits[worst] < PROMISE_S - START_S, f"killed after {worst[0]:g} s, phase {worst[1]:g} s"


@pytest.mark.parametrize("seconds", [70.0, 400.0])
def test_who_lives_keeps_what_it_holds(tmp_path: Path, seconds: float) -> None:
    machines = Machines(tmp_path)
    first, second = machines.worker(1e6), machines.worker(5.0)
    machines.work(first, 1.0)
    for _ in range(round(seconds)):
        machines.work(first, TICK_S)
        second.turn()
        assert machines.holds(first)
