"""The lease renewer: renews in time, notices what is lost, and gives up before the ledger does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.engine.lease_renewer import MARGIN, TICK_S, UNUSED_MAX, LeaseRenewer
from intermission.errors import LedgerError
from intermission.model import Completion, Heartbeat, JobState, Lease, Reason, Renewal, TaskState
from intermission.ports.clock import Clock
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import job, states_of, step, submit
from intermission.testing.scratch_ledger import scratch_ledger

TTL_S = 60.0
RENEW_S = 15.0


class Ledger(SqliteLedger):
    """Counts its openings and heartbeats, and can be out of reach."""

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        super().__init__(path, clock=clock)
        self.heartbeats: list[Heartbeat] = []
        self.opened = self.closed = 0
        self.is_down = False

    def renew(self, worker: str, heartbeats: object, *, lease_ttl_s: float) -> Renewal:
        if self.is_down:
            raise LedgerError("the ledger is out of reach.")
        self.heartbeats += heartbeats  # type: ignore[operator]
        return super().renew(worker, heartbeats, lease_ttl_s=lease_ttl_s)  # type: ignore[arg-type]

    def cancelled(self, job_keys: Collection[str]) -> set[str]:
        return {key for key in job_keys if self.jobs(key, states=[JobState.CANCELLED])}

    def close(self) -> None:
        self.closed += 1


class Hand:
    """A worker's side of the renewer."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.ledger = scratch_ledger(self.clock, Ledger)
        self.job = submit(self.ledger, job(step("one"), step("two"), step("three")))
        self.lost: list[int] = []
        self.cancelled: list[int] = []
        self.lease_renewer = LeaseRenewer(
            "w",
            self.clock,
            lease_ttl_s=TTL_S,
            renew_every_s=RENEW_S,
        )
        told = {Reason.LEASE_LOST: self.lost, Reason.CANCELLED: self.cancelled}
        self.lease_renewer.report_to(lambda _, held, reason: told[reason].append(held.task_id))

    def claimed(self, name: str = "job", opener: Callable[[], object] | None = None) -> Any:
        """A job as its work source hands it out."""
        return SimpleNamespace(name=name, open_renewals=opener or self._open)

    def _open(self) -> Ledger:
        self.ledger.opened += 1
        return self.ledger

    def take(self, count: int = 1) -> list[Lease]:
        now_s = self.clock.monotonic_s()
        leases = self.ledger.claim("w", count, lease_ttl_s=TTL_S)
        self.lease_renewer.hold(self.claimed(), leases, now_s)
        return leases

    def passes(self, seconds: float) -> None:
        """Let time pass the way it does for a renewer that is never late."""
        for _ in range(round(seconds / TICK_S)):
            self.clock.advance(TICK_S)
            self.lease_renewer.tick()


@pytest.fixture
def hand() -> Hand:
    return Hand()


def lease(task_id: int) -> Lease:
    return Lease(task_id, 1, 1, "job", "one", 0, f"key-{task_id}")


def test_a_lease_is_renewed_in_time_for_as_long_as_it_is_held(hand: Hand) -> None:
    hand.take()
    hand.passes(600)
    assert hand.lost == []
    assert len(hand.ledger.heartbeats) == pytest.approx(600 / RENEW_S, abs=2)
    assert hand.ledger.rescue() == 0
    assert TaskState.RUNNING in states_of(hand.ledger, hand.job).values()


def test_what_was_let_go_is_not_renewed(hand: Hand) -> None:
    one, two = hand.take(2)
    hand.lease_renewer.let_go("job", [one.task_id, 98765])
    hand.passes(RENEW_S)
    assert {heartbeat.task_id for heartbeat in hand.ledger.heartbeats} == {two.task_id}


def test_news_of_progress_does_not_wait_for_the_renewal(hand: Hand) -> None:
    (lease,) = hand.take()
    hand.passes(2)
    hand.ledger.heartbeats.clear()
    hand.lease_renewer.progress("job", lease.task_id, 0.4)
    hand.lease_renewer.progress("job", 98765, 0.4)
    hand.passes(5)
    assert [heartbeat.progress for heartbeat in hand.ledger.heartbeats] == [0.4]


def test_a_lease_that_somebody_else_has_is_lost_at_once(hand: Hand) -> None:
    one, two = hand.take(2)
    hand.ledger.rescue(["w"])
    (taken,) = hand.ledger.claim("other", 1, lease_ttl_s=TTL_S)
    hand.passes(RENEW_S)
    assert hand.lost == [taken.task_id]
    hand.passes(RENEW_S * 2)
    assert hand.lost == [taken.task_id], "it is told once"
    assert two.task_id in {heartbeat.task_id for heartbeat in hand.ledger.heartbeats[-1:]}
    assert one.task_id == taken.task_id


def test_a_late_renewal_nobody_contests_keeps_the_lease(hand: Hand) -> None:
    hand.take()
    hand.ledger.rescue(["w"])
    hand.passes(RENEW_S)
    assert hand.lost == []
    assert TaskState.RUNNING in states_of(hand.ledger, hand.job).values()


def test_a_cancelled_job_is_told_without_waiting_for_a_renewal(hand: Hand) -> None:
    (lease,) = hand.take()
    hand.passes(TICK_S)
    hand.ledger.cancel(hand.job.key, reason="no longer wanted")
    hand.passes(TICK_S)
    assert hand.cancelled == [lease.task_id]
    assert hand.lost == hand.ledger.heartbeats == [], "no renewal was due"


def test_a_task_that_waited_says_when_it_has_begun(hand: Hand) -> None:
    leases = hand.ledger.claim("w", 2, lease_ttl_s=TTL_S, begin=False)
    hand.lease_renewer.hold(hand.claimed(), leases, hand.clock.monotonic_s(), begun=False)
    hand.lease_renewer.begin("job", [leases[0].task_id])
    hand.passes(TICK_S)
    assert [one.task_id for one in hand.ledger.heartbeats] == [leases[0].task_id]
    hand.passes(RENEW_S)
    begun = {one.task_id: one.begun for one in hand.ledger.heartbeats}
    assert begun == {leases[0].task_id: True, leases[1].task_id: False}


def test_a_ledger_out_of_reach_costs_the_lease_before_it_ends(hand: Hand) -> None:
    (lease,) = hand.take()
    hand.passes(2)
    started_s = hand.clock.monotonic_s()
    hand.ledger.is_down = True
    while not hand.lost:
        hand.passes(TICK_S)
    waited_s = hand.clock.monotonic_s() - started_s
    assert hand.lost == [lease.task_id]
    assert TTL_S * (1 - MARGIN) - 4 <= waited_s < TTL_S
    assert hand.ledger.rescue() == 0, "the ledger has not given it to anybody yet"


def test_a_ledger_that_takes_its_time_for_every_job_costs_them_all_in_time(hand: Hand) -> None:
    """Many jobs are open, and each asks a ledger that gives no answer for a while."""
    names = [f"job{n}" for n in range(12)]
    began_s = hand.clock.monotonic_s()
    for n, name in enumerate(names):
        hand.lease_renewer.hold(hand.claimed(name), [lease(n)], began_s)
    lost_s: list[float] = []

    def on_lost(*_: object) -> None:
        lost_s.append(hand.clock.monotonic_s() - began_s)

    hand.lease_renewer.report_to(on_lost)

    def in_vain(*_: Any, **__: Any) -> Renewal:
        hand.clock.advance(5.0)
        raise LedgerError("the ledger is out of reach.")

    hand.ledger.renew = in_vain  # type: ignore[method-assign]
    hand.passes(TTL_S)
    assert len(lost_s) == len(names)
    assert max(lost_s) < TTL_S


def test_a_ledger_back_in_time_costs_nothing(hand: Hand) -> None:
    hand.take()
    hand.ledger.is_down = True
    hand.passes(TTL_S * (1 - MARGIN) - 5)
    hand.ledger.is_down = False
    hand.passes(120)
    assert hand.lost == []


def test_a_stop_longer_than_the_lease_is_noticed_on_waking(hand: Hand) -> None:
    (lease,) = hand.take()
    hand.clock.advance(TTL_S * 2)
    hand.ledger.rescue()
    hand.ledger.claim("other", 1, lease_ttl_s=TTL_S)
    hand.lease_renewer.tick()
    assert hand.lost == [lease.task_id]


def test_a_task_that_ends_during_its_renewal_is_not_lost(hand: Hand) -> None:
    (lease,) = hand.take()
    renew = hand.ledger.renew

    def slowly(*args: Any, **options: Any) -> Renewal:
        hand.ledger.complete([Completion(lease.task_id, lease.fence, "1")])
        hand.lease_renewer.let_go("job", [lease.task_id])
        return renew(*args, **options)

    hand.ledger.renew = slowly  # type: ignore[method-assign]
    hand.passes(RENEW_S)
    assert hand.ledger.heartbeats
    assert hand.lost == []


def test_its_connection_is_opened_at_once_and_kept_for_the_next_lease(hand: Hand) -> None:
    (first,) = hand.take()
    assert hand.ledger.opened == 0
    hand.lease_renewer.tick()
    assert hand.ledger.opened == 1, "later there may be another ledger in its place"
    hand.lease_renewer.let_go("job", [first.task_id])
    hand.ledger.heartbeats.clear()
    hand.passes(RENEW_S * 2)
    assert hand.ledger.heartbeats == []
    hand.take()
    hand.passes(RENEW_S * 2)
    assert (hand.ledger.opened, hand.ledger.closed) == (1, 0)


def test_few_connections_that_nobody_needs_stay_open(hand: Hand) -> None:
    for n in range(50):
        opener = partial(hand._open)  # unequal to every other
        hand.lease_renewer.hold(hand.claimed(f"job {n}", opener), [lease(n)], 0.0)
        hand.lease_renewer.tick()
        hand.lease_renewer.let_go(f"job {n}", [n])
    hand.lease_renewer.tick()
    assert hand.ledger.opened == 50
    assert hand.ledger.closed == 50 - UNUSED_MAX


@pytest.fixture
def threads() -> Iterator[list[LeaseRenewer]]:
    started: list[LeaseRenewer] = []
    yield started
    for lease_renewer in started:
        lease_renewer.stop()


def eventually(condition: threading.Event) -> None:
    assert condition.wait(30), "it did not happen within 30 s"


def test_the_thread_ticks_until_it_is_stopped(
    hand: Hand, threads: list[LeaseRenewer], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticked = threading.Event()
    monkeypatch.setattr("intermission.engine.lease_renewer.TICK_S", 0.001)
    monkeypatch.setattr(hand.lease_renewer, "_give_up", ticked.set)
    hand.take()
    hand.lease_renewer.start()
    threads.append(hand.lease_renewer)
    eventually(ticked)
    hand.lease_renewer.check()
    threads.pop().stop()
    assert hand.ledger.closed == hand.ledger.opened == 1


def test_what_ends_the_thread_is_raised_in_the_worker(
    hand: Hand, threads: list[LeaseRenewer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("intermission.engine.lease_renewer.TICK_S", 0.001)
    monkeypatch.setattr(hand.lease_renewer, "_give_up", broken)
    hand.lease_renewer.start()
    hand.lease_renewer._thread.join(30)
    with pytest.raises(RuntimeError, match="broken"):
        hand.lease_renewer.check()


def test_jobs_of_one_ledger_share_a_connection(hand: Hand) -> None:
    for n in range(100):
        hand.lease_renewer.hold(hand.claimed(f"job {n}"), [lease(n)], hand.clock.monotonic_s())
    hand.lease_renewer.tick()
    assert hand.ledger.opened == 1
