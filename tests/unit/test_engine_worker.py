"""The worker's loop, with a clock, a ledger and an executor that do what a test tells them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.work_source.host_faults import check_scratch
from intermission.backends.work_source.open_job import OpenJob
from intermission.backends.work_source.shared_jobs import SharedJobs
from intermission.engine.lease_renewer import LeaseRenewer
from intermission.engine.worker import AWAY_S, Worker
from intermission.errors import (
    ChangeRefused,
    EnvironmentFault,
    LedgerError,
    NoPipeline,
    StoreUnavailable,
)
from intermission.model import Lease, Output, Reason, TaskRow, TaskState
from intermission.ports.executor import Said, SlotEnded
from intermission.ports.slot_protocol import (
    Completed,
    CorruptInput,
    HostFault,
    Inputs,
    JobContext,
)
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
        self.given: list[dict[str, list[Output | None]]] = []
        self.count = 0

    @property
    def idle(self) -> int:
        return self.slots - len(self.running)

    def start(
        self, context: JobContext, leases: Sequence[Lease], inputs: Mapping[int, Inputs]
    ) -> int:
        self.count += 1
        for by_param in inputs.values():
            self.given.append({param: list(outputs) for param, outputs in by_param.items()})
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
        self.happened.append(Said(run, [Completed(lease.task_id, "1", took_s=0.5)]))

    def dies(self, run: int) -> None:
        del self.running[run]
        self.happened.append(SlotEnded(run, "the slot was killed by SIGKILL"))


class Ledger(SqliteLedger):
    """Can be out of reach."""

    is_away = reads_fail = False

    def __getattribute__(self, name: str) -> Any:
        changes = ("claim", "complete", "complete_and_claim", "fail", "release", "rescue", "renew")
        if (name in changes and self.is_away) or (name == "outputs" and self.reads_fail):
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
            scratch=folder / "scratch",
            open_store=None,
            open_outputs=None,
            fetch_source=None,
            check_source=None,
            open_ledger=lambda: self.ledger,
        )
        opened = OpenJob(place, self.job, self.ledger, cast(Any, None), "w", self.settings)
        self.opened: OpenJob = opened
        self.open: Callable[[], OpenJob] = lambda: self.opened
        self.self_test: Callable[[], None] = lambda: None
        source = SharedJobs(
            self.ledger,
            lambda _: self.open(),
            "w",
            self.settings,
            self.clock,
            host="here",
            self_test=lambda: self.self_test(),
        )
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

    def says(self, run: int, said: Any) -> None:
        """What a slot answers for the only task of its run."""
        del self.executor.running[run]
        self.executor.happened.append(Said(run, [said]))

    def faults(self, run: int, reason: Reason = Reason.SCRATCH_FAILED) -> None:
        lease = self.executor.running[run][0]
        self.says(run, HostFault(lease.task_id, "broken.", "", 4, reason))

    def rows(self) -> dict[str, TaskRow]:
        return {row.step: row for row in self.ledger.tasks(self.job.key)}

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


def test_a_batch_starts_with_what_it_takes_from_upstream(tmp_path: Path) -> None:
    shop = Shop(tmp_path, step("one"), step("two", one=["one"]))
    shop.turn()
    shop.executor.ends(1)
    shop.turn()
    shop.turn()
    key = shop.rows()["one"].key
    assert shop.executor.given == [{"one": [Output(key, "1")]}]


def test_inputs_that_cannot_be_read_now_cost_no_attempt(tmp_path: Path) -> None:
    shop = Shop(tmp_path, step("one"), step("two", one=["one"]))
    shop.turn()
    shop.executor.ends(1)
    shop.ledger.reads_fail = True
    shop.turn()
    shop.turn()
    row = shop.rows()["two"]
    assert (row.state, row.code, row.attempts) == (TaskState.ABANDONED, Reason.LEDGER_AWAY, 0)
    assert not shop.executor.running
    shop.ledger.reads_fail = False
    shop.turn(AWAY_S + 1)
    assert [lease.step for lease in shop.executor.running[2]] == ["two"]


def test_a_task_whose_input_was_lost_after_the_claim_is_not_started(tmp_path: Path) -> None:
    shop = Shop(tmp_path, step("one"), step("two", one=["one"]))
    shop.turn()
    shop.executor.ends(1)
    shop.worker._wait(-1)
    shop.worker._record_ends()
    assert shop.states()["two"] is TaskState.LEASED
    shop.ledger.invalidate([shop.rows()["one"].id], reason="gone")
    shop.worker._dispatch()
    assert not shop.executor.running
    assert shop.states() == {"one": TaskState.CORRUPT, "two": TaskState.BLOCKED}
    shop.turn()
    assert [lease.step for lease in shop.executor.running[2]] == ["one"]


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


def test_the_next_task_of_a_job_is_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes with the end of the last: nobody has to look around for it."""
    shop = Shop(tmp_path, step("one"), step("two", one=["one"]), step("three", one=["two"]))
    shop.turn()

    def look_around(*_: Any, **__: Any) -> list[Lease]:
        raise AssertionError("a claim was asked for")

    monkeypatch.setattr(shop.ledger, "claim", look_around)
    for run, name in ((1, "two"), (2, "three")):
        shop.executor.ends(run)
        shop.worker._wait(-1)
        shop.turn()
        assert [lease.step for lease in shop.executor.running[run + 1]] == [name]
    monkeypatch.undo()
    shop.executor.ends(3)
    shop.worker._wait(-1)
    shop.turn()
    assert shop.states() == dict.fromkeys(("one", "two", "three"), TaskState.DONE)


def test_a_draining_worker_is_handed_nothing(tmp_path: Path) -> None:
    shop = Shop(tmp_path, step("one"), step("two", one=["one"]))
    shop.turn()
    shop.worker.drain("it is over", 60.0)
    shop.executor.ends(1)
    shop.worker._wait(-1)
    shop.turn()
    assert shop.states() == {"one": TaskState.DONE, "two": TaskState.PENDING}


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
    row = shop.rows()["one"]
    assert (row.state, row.code) == (TaskState.RETRYING, Reason.CRASHED)


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
    assert (row.state, row.error, row.code) == (
        TaskState.RETRYING,
        "TimedOut",
        Reason.TIMED_OUT,
    )


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


def test_a_fault_of_the_host_uses_no_attempt_and_the_worker_goes_on(shop: Shop) -> None:
    """EIO of one step: once, the fleet left one by one."""
    shop.turn()
    shop.faults(1)
    shop.turn()
    row = shop.rows()["one"]
    assert (row.state, row.attempts, row.refusals) == (TaskState.ABANDONED, 0, 1)
    assert shop.worker.drain_reason is None
    shop.turn(2.0)
    assert [lease.step for lease in shop.executor.running[2]] == ["two"], "it has other work"
    (other,) = shop.ledger.claim("w2", 1, lease_ttl_s=60, host="elsewhere")
    assert other.step == "one", "another host is asked to run it"


def test_two_faults_in_a_row_are_the_hosts_and_it_looks_again_later(shop: Shop) -> None:
    for run in (1, 2):
        shop.turn(2.0)
        shop.faults(run)
        shop.turn()
    shop.turn(50.0)
    assert not shop.executor.running
    shop.turn(20.0)
    assert [lease.step for lease in shop.executor.running[3]] == ["one"], "after a minute"


def test_a_host_leaves_when_its_own_test_has_failed_three_times(shop: Shop) -> None:
    def broken() -> None:
        raise EnvironmentFault("the disk is read-only.")

    shop.self_test = broken
    for run in (1, 2):
        shop.turn(2.0)
        shop.faults(run)
        shop.turn()
    for wait_s in (60.0, 300.0):
        shop.turn(wait_s)
        assert shop.worker.drain_reason is None, "it looks again later"
        assert not shop.executor.running
    shop.turn(900.0)
    assert shop.worker.drain_reason == "the disk is read-only."
    assert {row.attempts for row in shop.rows().values()} == {0}


def test_a_host_that_passes_its_own_test_goes_on(shop: Shop) -> None:
    tests: list[float] = []
    shop.self_test = lambda: tests.append(shop.clock.monotonic_s())
    for run in (1, 2):
        shop.turn(2.0)
        shop.faults(run)
        shop.turn()
    assert not tests
    shop.turn(60.0)
    shop.turn(2.0)
    assert len(tests) == 1
    assert shop.executor.running


def test_a_scratch_that_cannot_be_written_to_fails_the_test_of_a_host(tmp_path: Path) -> None:
    check_scratch(tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match="testing this host failed"):
        check_scratch(tmp_path / "file" / "below")


def test_a_job_that_cannot_be_opened_here_is_burned_nowhere(shop: Shop) -> None:
    def missing() -> OpenJob:
        raise NoPipeline("there is no pipeline here.")

    shop.open = missing
    shop.turn()
    rows = shop.rows().values()
    assert [row.attempts for row in rows] == [0, 0]
    assert not shop.executor.running
    assert shop.worker.drain_reason is None
    assert shop.ledger.claim("w2", 1, lease_ttl_s=60, host="elsewhere")


def test_a_store_that_is_away_is_nobodys_fault(shop: Shop) -> None:
    def away() -> OpenJob:
        raise StoreUnavailable("the store does not answer.")

    shop.open = away
    shop.turn()
    row = shop.rows()["one"]
    assert (row.state, row.attempts, row.refusals) == (TaskState.ABANDONED, 0, 0)


def test_a_store_that_is_away_when_an_input_is_found_lost_ends_no_worker(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("the store does not answer.")

    shop.turn()
    lease = shop.executor.running[1][0]
    lost = CorruptInput(lease.task_id, "key", "artifacts/x", "a file is missing.")
    with monkeypatch.context() as patch:
        patch.setattr(shop.opened, "lose", away)
        shop.says(1, lost)
        shop.turn()
    row = shop.rows()["one"]
    assert (row.state, row.attempts, row.code) == (TaskState.ABANDONED, 0, Reason.STORE_AWAY)
    assert shop.worker.drain_reason is None


def test_a_change_that_is_never_taken_fails_its_task_and_holds_up_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*_: object) -> None:
        raise ChangeRefused("the plan is larger than 64 MiB.")

    shop.turn()
    with monkeypatch.context() as patch:
        patch.setattr(shop.opened, "complete", too_large)
        shop.executor.ends(1)
        shop.turn()
        shop.turn()
    row = shop.rows()["one"]
    assert (row.state, row.message) == (TaskState.FAILED, "the plan is larger than 64 MiB.")
    shop.executor.ends(2)
    shop.turn()
    shop.turn()
    assert shop.states()["two"] is TaskState.DONE


def test_what_only_waited_for_a_slot_is_not_lost_with_its_worker(tmp_path: Path) -> None:
    """Three are claimed ahead for the one slot, and the worker is killed: one was under way."""
    shop = Shop(tmp_path, *(step(f"s{n}") for n in range(3)))
    shop.worker._stats.finished("crash/s0", [0.02], mapped=True)
    shop.turn()
    shop.clock.advance(1.0)
    shop.renewer.tick()
    assert [one.step for batch in shop.executor.running.values() for one in batch] == ["s0"]
    assert shop.ledger.rescue(["w"]) == 3
    assert [row.lost for row in shop.rows().values()] == [1, 0, 0]
    assert [row.attempts for row in shop.rows().values()] == [0, 0, 0]


def test_a_loss_that_is_told_late_does_not_touch_the_next_lease_of_its_task(
    tmp_path: Path,
) -> None:
    """The renewer hears that a lease is gone which the worker is just giving back."""
    shop = Shop(tmp_path, step("one"), step("two"), step("three"))
    shop.worker._stats.finished("crash/one", [0.02], mapped=True)
    shop.turn()
    given_back = list(shop.renewer._held[shop.opened.name].values())[1:]
    shop.turn(0.5)
    shop.turn(1.0)
    for held in given_back:
        shop.worker._lease_ended(shop.opened.name, held, Reason.LEASE_LOST)
    for run, name in enumerate(["one", "two", "three"], start=1):
        assert [one.step for one in shop.executor.running[run]] == [name]
        shop.executor.ends(run)
        shop.turn()
    assert shop.executor.killed == []


def test_a_suspect_runs_with_nothing_beside_it(tmp_path: Path) -> None:
    shop = Shop(tmp_path, *(step(f"s{n}") for n in range(3)), slots=3)
    for _ in range(2):
        shop.ledger.claim("dead", 1, lease_ttl_s=60)
        shop.ledger.rescue(["dead"])
    shop.turn()
    assert [[one.alone for one in some] for some in shop.executor.running.values()] == [[True]]
    shop.executor.ends(1)
    shop.turn()
    shop.turn()
    assert len(shop.executor.running) == 2
