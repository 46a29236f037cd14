"""The worker's loop, with a clock, a ledger and an executor that do what a test tells them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.engine.lease_renewer import LeaseRenewer
from intermission.engine.open_job import OpenJob
from intermission.engine.shared_jobs import SharedJobs
from intermission.engine.worker import AWAY_S, Worker
from intermission.errors import LedgerError
from intermission.model import Completion, Lease, TaskState
from intermission.ports.executor import Said, SlotEnded
from intermission.ports.slot_protocol import Completed, JobContext
from intermission.settings import Settings
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import job, states_of, step, submit
from intermission.testing.scratch_ledger import scratch_ledger


class Executor:
    """Slots that do nothing until a test says how it went."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.running: dict[int, list[Lease]] = {}
        self.happened: list[Said | SlotEnded] = []
        self.killed: list[int] = []
        self.cancelled: list[int] = []
        self.count = 0

    @property
    def idle(self) -> int:
        return self.slots - len(self.running)

    def start(self, context: JobContext, leases: Sequence[Lease]) -> int:
        self.count += 1
        self.running[self.count] = list(leases)
        return self.count

    def cancel(self, run: int, task_id: int) -> None:
        self.cancelled.append(run)

    def kill(self, run: int) -> None:
        if run in self.running:
            self.killed.append(run)

    def events(self) -> list[Said | SlotEnded]:
        found, self.happened = self.happened, []
        return found

    def ends(self, run: int) -> None:
        """Its first task ends well."""
        lease = self.running[run].pop(0)
        if not self.running[run]:
            del self.running[run]
        done = Completion(lease.task_id, lease.fence, "1", key=lease.key)
        self.happened.append(Said(run, [Completed(done, 0.5)]))

    def dies(self, run: int) -> None:
        del self.running[run]
        self.happened.append(SlotEnded(run, "the slot was killed by SIGKILL"))


class Ledger(SqliteLedger):
    """Can be out of reach."""

    is_away = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("claim", "complete", "fail", "release", "rescue", "renew") and self.is_away:
            raise LedgerError("the ledger is out of reach.")
        return super().__getattribute__(name)


class Shop:
    """A worker of a fleet, one turn of its loop at a time."""

    def __init__(self, folder: Path, *steps: Any, slots: int = 1) -> None:
        self.clock = FakeClock()
        self.ledger = scratch_ledger(self.clock, Ledger)
        self.job = submit(self.ledger, job(*steps))
        self.executor = Executor(slots)
        self.settings = Settings(slots=slots, retry_delays_s=(0.0,))
        place: Any = SimpleNamespace(
            folder=folder,
            open_store=None,
            open_outputs=None,
            fetch_source=None,
            open_ledger=lambda: self.ledger,
        )
        opened = OpenJob(place, self.job, self.ledger, cast(Any, None), "w", self.settings)
        source = SharedJobs(self.ledger, lambda _: opened, "w", self.settings, self.clock)
        self.renewer = LeaseRenewer(
            "w", self.clock, lease_ttl_s=source.lease_ttl_s, renew_every_s=15.0
        )
        self.worker = Worker(
            source, self.renewer, cast(Any, self.executor), self.clock, drain_s=20, wait=self._wait
        )

    def _wait(self, readers: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        return [self.executor] if self.executor.happened else []

    def turn(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.worker._turn()
        self.worker._wait(-1)
        self.worker._enforce()

    def states(self) -> dict[str, TaskState]:
        return states_of(self.ledger, self.job)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, step("one"), step("two"))


def test_a_slot_that_ends_is_given_the_next_task(shop: Shop) -> None:
    shop.turn()
    assert [lease.step for lease in shop.executor.running[1]] == ["one"]
    shop.executor.ends(1)
    shop.turn()
    shop.turn()
    assert [lease.step for lease in shop.executor.running[2]] == ["two"]
    assert shop.states()["one"] is TaskState.DONE


def test_a_lost_lease_kills_its_run_and_costs_no_attempt(shop: Shop) -> None:
    shop.turn()
    shop.ledger.rescue(["w"])
    shop.ledger.claim("other", 2, lease_ttl_s=60)
    shop.clock.advance(15)
    shop.renewer.tick()
    assert shop.executor.killed == [1], "at once, by the renewer's own thread"
    shop.executor.dies(1)
    shop.turn()
    assert shop.states()["one"] is TaskState.LEASED, "it is the other's"
    assert not [one for one in shop.ledger.events() if one.now == "retrying"]


def test_a_task_that_was_answered_for_is_not_killed_for_its_lease(shop: Shop) -> None:
    """Its lease may be found gone before its end is recorded."""
    shop.turn()
    shop.executor.ends(1)
    shop.ledger.is_away = True
    shop.turn()
    shop.turn()
    shop.clock.advance(60)
    shop.renewer.tick()
    assert shop.executor.killed == []


def test_a_crash_is_the_tasks_own(shop: Shop) -> None:
    shop.turn()
    shop.executor.dies(1)
    shop.turn()
    assert shop.states()["one"] is TaskState.RETRYING


def test_a_time_out_kills_and_counts(tmp_path: Path) -> None:
    shop = Shop(tmp_path, step("one", timeout_s=10.0))
    shop.turn()
    shop.turn(9.0)
    assert shop.executor.killed == []
    shop.turn(2.0)
    assert shop.executor.killed == [1]
    shop.executor.dies(1)
    shop.turn()
    (row,) = shop.ledger.tasks(shop.job.key)
    assert (row.state, row.error) == (TaskState.RETRYING, "TimedOut")


def test_what_ends_while_the_ledger_is_away_is_written_when_it_is_back(shop: Shop) -> None:
    shop.turn()
    shop.ledger.is_away = True
    shop.executor.ends(1)
    shop.turn()
    shop.turn()
    shop.ledger.is_away = False
    shop.turn(AWAY_S / 2)
    assert shop.states()["one"] is not TaskState.DONE, "it is left alone for a while"
    assert shop.renewer.jobs(), "the lease is kept until then"
    shop.turn(AWAY_S / 2)
    assert shop.states()["one"] is TaskState.DONE


def test_a_cancelled_task_is_told_and_then_killed(shop: Shop) -> None:
    shop.turn()
    shop.ledger.cancel(shop.job.key, reason="no longer wanted")
    shop.clock.advance(15)
    shop.renewer.tick()
    shop.turn()
    assert (shop.executor.cancelled, shop.executor.killed) == ([1], [])
    shop.turn(6.0)
    assert shop.executor.killed == [1]


def test_what_no_slot_is_free_for_goes_back_to_others(tmp_path: Path) -> None:
    """Short tasks are claimed ahead; the first turns out long."""
    shop = Shop(tmp_path, *(step(f"s{n}") for n in range(9)))
    shop.worker._stats.finished("crash/s0", [0.02], mapped=True)
    shop.turn()
    held = [name for name, state in shop.states().items() if state is TaskState.LEASED]
    assert len(held) == 5
    shop.turn(0.5)
    shop.turn(1.0)
    assert list(shop.states().values()).count(TaskState.ABANDONED) == 4
    assert len(shop.executor.running) == 1
