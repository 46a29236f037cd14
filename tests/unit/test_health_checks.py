"""Looking at what no event tells: queues, disks and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.registry.sqlite import SqliteRegistry
from intermission.model import Limit, identity
from intermission.ports.ledger import Ledger
from intermission.ports.registry import KeyRow, WorkerRow
from intermission.services.alerting import LOOK_EVERY_S
from intermission.services.alerts import Situation
from intermission.services.health_checks import (
    DISK_LOW_BYTES,
    OFFLINE_MS,
    QUEUE_OLD_MS,
    Queues,
    WorkerWatch,
    low_disk,
)
from intermission.services.oldest_jobs import OldestJobs
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import line_job, submit


class World:
    """A ledger on a clock that a test turns."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.ledger: Ledger = SqliteLedger(folder / "ledger.sqlite", clock=self.clock)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.ledger.close()


Look = Callable[[], list[Situation]]


@pytest.fixture
def look(world: World) -> Look:
    queues = Queues("here", world.clock)
    return lambda: list(queues.look(world.ledger))


def wait_s(world: World, look: Look, seconds: float) -> list[Situation]:
    """Let time pass as a server does, looking every minute."""
    found: list[Situation] = []
    for _ in range(int(seconds // LOOK_EVERY_S)):
        found = look()
        world.clock.advance(LOOK_EVERY_S)
    return found


def test_a_queue_that_stands_still_is_old(world: World, look: Look) -> None:
    submit(world.ledger, line_job(key=identity("a"), pipeline="film"))
    assert wait_s(world, look, QUEUE_OLD_MS / 1000) == []
    (found,) = wait_s(world, look, 120)
    assert found.subject["task"] == "fetch"
    assert found.subject["waited_s"] == QUEUE_OLD_MS / 1000 + 60
    assert "16 minutes" in found.message


def test_a_queue_that_moves_is_not(world: World, look: Look) -> None:
    submit(world.ledger, line_job(key=identity("0"), pipeline="film"))
    for n in range(1, 20):
        submit(world.ledger, line_job(key=identity(str(n)), pipeline="film"))
        assert wait_s(world, look, 60) == []
        assert world.ledger.claim("w", 1, lease_ttl_s=100_000)


def test_a_queue_that_waits_on_purpose_is_not(world: World, look: Look) -> None:
    later_ms = world.clock.now_ms() + 10 * QUEUE_OLD_MS
    submit(world.ledger, line_job(key=identity("later"), not_before_ms=later_ms))
    submit(world.ledger, line_job(key=identity("paused"), pipeline="held"))
    world.ledger.limit(Limit("pipeline:held", paused=True))
    assert wait_s(world, look, 2 * QUEUE_OLD_MS / 1000) == []
    world.ledger.limit(Limit("pipeline:held"))
    (found,) = wait_s(world, look, 2 * QUEUE_OLD_MS / 1000)
    assert found.subject["pipeline"] == "held"


@pytest.mark.parametrize(
    ("free", "total", "is_low"),
    [
        (DISK_LOW_BYTES, DISK_LOW_BYTES * 10, False),
        (DISK_LOW_BYTES - 1, DISK_LOW_BYTES * 2, True),
        (DISK_LOW_BYTES * 2, DISK_LOW_BYTES * 21, True),
        (0, 0, True),
    ],
)
def test_a_disk_is_low_by_share_or_by_size(free: int, total: int, is_low: bool) -> None:
    assert len(list(low_disk(Path("/store"), free, total))) == is_low


def test_workers_that_come_and_go_are_told_once(tmp_path: Path, world: World) -> None:
    registry = SqliteRegistry(tmp_path / "workers.sqlite")
    clock = world.clock
    row = WorkerRow("id", "gpu-1", (), {}, "1", clock.now_ms(), b"")
    registry.register(row, KeyRow("prefix", "hash"))
    watch = WorkerWatch(registry, clock)

    def kinds() -> list[str]:
        return [one.kind for one in watch.look()]

    def hear() -> None:
        registry.seen("id", at_ms=clock.now_ms(), slots=1, busy=0, version="1")

    assert kinds() == []
    hear()
    assert kinds() == ["worker.online"]
    clock.advance(OFFLINE_MS / 1000)
    assert kinds() == []
    clock.advance(1)
    assert kinds() == ["worker.offline"]
    assert kinds() == []
    hear()
    assert kinds() == ["worker.online"]
    registry.revoke("id", at_ms=clock.now_ms())
    clock.advance(OFFLINE_MS)
    assert kinds() == []
    registry.close()


class Counting(SqliteLedger):
    """Counts the jobs and tasks that are read from it."""

    read = 0

    def jobs(self, *asked: Any, **how: Any) -> list[Any]:
        return self._tally(super().jobs(*asked, **how))

    def tasks(self, *asked: Any, **how: Any) -> list[Any]:
        return self._tally(super().tasks(*asked, **how))

    def _tally(self, rows: list[Any]) -> list[Any]:
        self.read += len(rows)
        return rows


def test_a_look_at_the_queues_costs_the_same_beside_any_number_of_jobs(tmp_path: Path) -> None:
    clock = FakeClock()
    ledger = Counting(tmp_path / "ledger.sqlite", clock=clock)
    queues = Queues("here", clock)
    costs = []
    for many in (250, 750):
        for n in range(many):
            submit(ledger, line_job(key=identity(f"{many} {n}"), pipeline="film"))
        for _ in range(2):
            before = ledger.read
            list(queues.look(ledger))
        costs.append(ledger.read - before)
    assert costs[1] <= costs[0] + 10
    clock.advance(QUEUE_OLD_MS / 1000 + 1)
    (found,) = queues.look(ledger)
    assert found.subject["job"] == identity("250 0"), "the oldest is found all the same"
    ledger.close()


def test_the_oldest_jobs_are_found_whatever_became_of_others(world: World) -> None:
    keys = [identity(str(n)) for n in range(200)]
    for key in keys:
        submit(world.ledger, line_job(key=key))
    oldest = OldestJobs()
    assert [row.job.key for row in oldest.look(world.ledger, 5)] == keys[:5]
    for key in keys[:150]:
        world.ledger.cancel(key, reason="enough")
    assert [row.job.key for row in oldest.look(world.ledger, 5)] == keys[150:155]
    assert [row.job.key for row in oldest.look(world.ledger, 100)] == keys[150:]
    world.ledger.retry(keys[3])
    found = [row.job.key for row in oldest.look(world.ledger, 5)]
    assert found == [keys[3], *keys[150:154]]
    for key in keys:
        world.ledger.cancel(key, reason="enough")
    assert oldest.look(world.ledger, 5) == []
