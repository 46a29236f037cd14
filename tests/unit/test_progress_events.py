"""What a worker tells about its work: little, the newest, and never at the work's expense."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import pytest

from intermission.backends import progress_pubsub
from intermission.backends.progress_events import LOOK_EVERY_S, ProgressEvents
from intermission.backends.progress_pubsub import CHANNEL, RedisProgress
from intermission.errors import LedgerError
from intermission.model import Event, Failure, Job
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import chunks, completion, fan_job, submit
from intermission.testing.scratch_ledger import scratch_ledger

TTL_S = 60.0
Told = tuple[str, str, float | None]


class World:
    """A job of two chunks whose plan is done, and what is told of it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.plain = scratch_ledger(self.clock)
        self.events: list[Event] = []
        self.publishing = ProgressEvents(self.plain, self.events.append, self.clock)
        self.ledger = self.publishing.ledger
        self.job: Job = submit(self.plain, fan_job())
        (plan,) = self.plain.claim("elsewhere", 1, lease_ttl_s=TTL_S)
        self.plain.complete([completion(self.plain, self.job, plan, chunks(2))])

    def told(self) -> list[Told]:
        """What was told since the last time."""
        told = [(one.task or "job", one.now, one.progress) for one in self.events]
        self.events.clear()
        return told

    def look(self) -> list[Told]:
        self.clock.advance(LOOK_EVERY_S)
        self.publishing.look()
        return self.told()


@pytest.fixture
def world() -> World:
    return World()


def test_claims_progress_and_ends_are_told(world: World) -> None:
    first, second = world.ledger.claim("w1", 2, lease_ttl_s=TTL_S)
    assert {(one.worker, one.fence, one.was) for one in world.events} == {("w1", 1, None)}
    assert world.told() == [("hear[0]", "leased", None), ("hear[1]", "leased", None)]
    assert world.look() == [("job", "running", None)]
    assert world.look() == []
    world.publishing.progressed(first.task_id, 0.5)
    assert world.told() == [("hear[0]", "running", 0.5)]
    world.ledger.complete([completion(world.plain, world.job, first)])
    failure = Failure(second.task_id, second.fence, "ValueError", "no luck", delay_s=9)
    world.ledger.fail([failure])
    assert [one.message for one in world.events] == [None, "no luck"]
    assert world.told() == [("hear[0]", "done", None), ("hear[1]", "retrying", None)]


def test_the_end_of_a_job_is_told(world: World) -> None:
    ledger = world.ledger
    while leases := ledger.claim("w1", 2, lease_ttl_s=TTL_S):
        ledger.complete([completion(world.plain, world.job, one) for one in leases])
    assert world.look()[-1] == ("job", "done", None)
    assert world.look() == []


def test_what_is_somebody_elses_by_now_is_not_told(world: World) -> None:
    (late, other) = world.ledger.claim("w1", 2, lease_ttl_s=TTL_S)
    world.clock.advance(TTL_S)
    world.plain.rescue()
    world.plain.claim("w2", 2, lease_ttl_s=TTL_S)
    world.told()
    assert world.ledger.complete([completion(world.plain, world.job, late)]) == [False]
    assert world.ledger.release([(other.task_id, other.fence)], reason="a drain") == 0
    world.publishing.progressed(late.task_id, 0.5)
    assert world.told() == []


def test_a_ledger_that_is_away_fails_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ledger.claim("w1", 1, lease_ttl_s=TTL_S)
    world.told()

    def away(_: str) -> None:
        raise LedgerError("gone.")

    with monkeypatch.context() as patch:
        patch.setattr(world.plain, "jobs", away)
        assert world.look() == []
    assert world.look() == [("job", "running", None)]


def test_other_questions_are_passed_on(world: World) -> None:
    assert world.ledger.jobs() == world.plain.jobs()
    assert list(world.ledger.tasks(world.job.key)) == list(world.plain.tasks(world.job.key))


def about(task_id: int | None, seq: int = 0) -> Event:
    return Event(seq, 0, "job", task_id, "hear", "running", "running", progress=0.5)


class Sent:
    """A Redis that takes what is published, or nothing."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, str]]] = []
        self.is_away = False
        self._batch: list[tuple[str, str]] = []

    def pipeline(self, *, transaction: bool) -> Sent:
        self._batch = []
        return self

    def __enter__(self) -> Sent:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def publish(self, channel: str, text: str) -> None:
        self._batch.append((channel, text))

    def execute(self) -> None:
        if self.is_away:
            raise ConnectionError("refused")
        self.batches.append(self._batch)

    def close(self) -> None:
        return None


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    sent = Sent()
    monkeypatch.setattr(progress_pubsub, "client", lambda url, timeout_s: sent)
    return sent


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def channel() -> RedisProgress:
    return RedisProgress("redis://nowhere", lambda event: str(event.seq))


def test_a_task_is_told_about_once_in_a_while_and_then_the_newest(sent: Sent) -> None:
    with closing(channel()) as told:
        told.tell(about(1, 1))
        until(lambda: sent.batches)
        for seq in range(2, 6):
            told.tell(about(1, seq))
        told.tell(about(2, 6))  # another task does not have to wait for it
        until(lambda: len(sent.batches) == 2)
    published = [[text for _, text in batch] for batch in sent.batches]
    assert published == [["1"], ["6"], ["5"]], "the last at the end, if not before"
    assert {name for batch in sent.batches for name, _ in batch} == {CHANNEL + "job"}


def test_what_waits_is_bounded(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_pubsub, "WAITING_MAX", 3)
    monkeypatch.setattr(progress_pubsub, "TOGETHER_S", 60.0)
    with closing(channel()) as told:
        told.tell(about(0, 0))
        until(lambda: sent.batches)
        for n in range(1, 10):
            told.tell(about(n, n))
    assert [text for _, text in sent.batches[1]] == ["7", "8", "9"]


def test_an_outage_is_said_once_and_holds_up_nobody(
    sent: Sent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_pubsub, "TOGETHER_S", 0.001)
    sent.is_away = True
    with closing(channel()) as told:
        for n in range(6):
            told.tell(about(n))
            until(lambda n=n: told.failures > n)
        assert not sent.batches
    assert [r.getMessage() for r in caplog.records] == [
        "publishing progress to Redis failed: refused. Nothing waits for it, and the event log has "
        "everything."
    ]
    told.tell(about(9))  # after its end: nothing
