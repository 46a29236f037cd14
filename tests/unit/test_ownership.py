"""Owning a workspace: lock and ledger kept by threads beside the work, given up in time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flaky_store import FlakyStore

from intermission.backends.ledger.object_ledger.lock import (
    LOCK_KEY,
    LOCK_TTL_S,
    MARGIN,
    STAMP_MARGIN_S,
)
from intermission.backends.ledger.object_ledger.ownership import (
    PUSH_EVERY_S,
    RENEW_EVERY_S,
    Ownership,
)
from intermission.backends.ledger.object_ledger.replica import LEDGER_NAME, LedgerCopy
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.work_source.worker_locks import dead, living
from intermission.composition.app import App
from intermission.engine.workspace import Workspace
from intermission.errors import LockLost, StoreError, WorkspaceBusy
from intermission.settings import Settings
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import job, step, submit

SOON_S = 30.0
"""How long a thread may take before a test calls it stuck."""


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.store = FlakyStore(self.clock)
        self.lost: list[Exception] = []
        self.told = threading.Event()
        self.owners: list[Ownership] = []

    def workspace(self, machine: str) -> Workspace:
        folder = self.folder / machine
        ledger = folder / LEDGER_NAME
        return Workspace(folder, lambda: self.store, None, lambda: SqliteLedger(ledger))

    def owner(self, machine: str = "one", **options: Any) -> Ownership:
        self.owners.append(
            Ownership(
                self.workspace(machine),
                f"{machine}-worker",
                on_lost=self._lose,
                clock=self.clock,
                **options,
            )
        )
        return self.owners[-1]

    def _lose(self, error: Exception) -> None:
        self.lost.append(error)
        self.told.set()

    def submit(self, owned: Ownership, key: str) -> None:
        ledger = SqliteLedger(owned.ledger_path)
        try:
            submit(ledger, job(step("one"), key=key))
        finally:
            ledger.close()

    def says(self) -> dict[str, Any]:
        return json.loads(self.store.read(LOCK_KEY))

    def uploads(self) -> int:
        return sum(key == LEDGER_NAME for key, _ in self.store.written)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for owner in world.owners:
        owner._copy.close()
        owner._alive.close()


def test_a_run_owns_its_workspace_and_leaves_it_free(world: World) -> None:
    with world.owner() as owned:
        world.submit(owned, "a")
        assert world.says()["state"] == "held"
        assert living(world.workspace("one")) == [owned.lock.owner]
        with pytest.raises(WorkspaceBusy):
            world.owner("two").open()
        assert all(thread.is_alive() for thread in owned._threads)
    assert not any(thread.is_alive() for thread in owned._threads)
    assert world.says()["state"] == "free"
    assert world.uploads() == 2
    assert (living(world.workspace("one")), dead(world.workspace("one"))) == ([], [])
    with world.owner("two") as other:
        ledger = SqliteLedger(other.ledger_path)
        assert [row.job.key for row in ledger.jobs()] == ["a"]
        ledger.close()
    assert world.lost == []


def test_an_interrupted_run_says_why_it_left(world: World) -> None:
    with pytest.raises(ValueError, match="the reason"), world.owner():
        raise ValueError("the reason")
    assert (world.says()["state"], world.says()["reason"]) == ("free", "the reason")


def test_uploads_come_when_they_are_due(world: World) -> None:
    owned = world.owner()
    owned.open()
    for n in range(3):
        world.submit(owned, f"job-{n}")
        before = world.uploads()
        world.clock.advance(PUSH_EVERY_S - 0.1)
        owned.push_if_due()
        assert world.uploads() == before
        world.clock.advance(0.1)
        owned.push_if_due()
        owned.push_if_due()
        assert world.uploads() == before + 1
    owned.close()


def test_an_hour_of_changes_is_uploaded_a_few_times(world: World) -> None:
    """Each upload is the whole file, and receipts tell what it lacks: so they are rare."""
    owned = world.owner()
    owned.open()
    for n in range(180):
        world.clock.advance(20)
        owned.renew_if_due()
        world.submit(owned, f"job-{n}")
        owned.push_if_due()
    assert world.uploads() <= 1 + 12
    owned.close()
    assert world.uploads() <= 1 + 12 + 1, "and once at the end"


def test_the_owners_machine_reads_what_is_not_uploaded(world: World) -> None:
    def seen(machine: str) -> list[str]:
        place = replace(world.workspace(machine), is_remote=True)
        with App(Settings()).reading(place) as ledger:
            assert ledger is not None
            return [row.job.key for row in ledger.jobs()]

    with world.owner() as owned:
        world.submit(owned, "a")
        assert (seen("one"), seen("two")) == (["a"], [])
        world.submit(owned, "b")
        assert seen("one") == ["b", "a"]
    assert seen("one") == seen("two") == ["b", "a"]


def test_renewals_come_when_they_are_due(world: World) -> None:
    owned = world.owner()
    owned.open()
    for _ in range(3):
        before = world.says()["heartbeat"]
        world.clock.advance(RENEW_EVERY_S - 0.1)
        owned.renew_if_due()
        assert world.says()["heartbeat"] == before
        world.clock.advance(0.1)
        owned.renew_if_due()
        owned.renew_if_due()
        assert world.says()["heartbeat"] == before + 1
    owned.close("done")
    assert world.says()["reason"] == "done"


def test_nothing_new_is_not_uploaded(world: World) -> None:
    owned = world.owner()
    owned.open()
    world.clock.advance(PUSH_EVERY_S)
    owned.push_if_due()
    owned.close()
    assert world.uploads() == 1


def test_the_thread_that_watches_gives_up_in_time(world: World) -> None:
    owned = world.owner(renew_every_s=0.01, push_every_s=1e9)
    owned.open()
    world.submit(owned, "too late")
    world.store.is_down = True
    world.clock.advance(1)
    owned.renew_if_due()
    owned.start()
    world.clock.advance(LOCK_TTL_S * (1 - MARGIN) - 1.1)
    assert not world.lost
    world.clock.advance(0.2)
    assert world.told.wait(SOON_S)
    with pytest.raises(LockLost, match=r"renewed in time: the request was lost\."):
        owned.check()
    world.store.is_down = False
    with pytest.raises(LockLost):
        owned.close()
    assert world.says()["state"] == "held", "what may be somebody else's is not freed"
    assert world.uploads() == 1, "nor written"
    assert len(world.lost) == 1
    assert dead(world.workspace("one")) == [owned.lock.owner]


def test_a_stuck_upload_holds_up_neither_renewals_nor_the_watch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, go_on, renewed = threading.Event(), threading.Event(), threading.Event()

    def push(self: LedgerCopy) -> bool:
        stuck.set()
        assert go_on.wait(SOON_S)
        return False

    owned = world.owner(renew_every_s=0.01, push_every_s=0.01)
    owned.open()
    renew = owned.lock.renew

    def renew_and_tell() -> None:
        renew()
        renewed.set()

    monkeypatch.setattr(LedgerCopy, "push", push)
    monkeypatch.setattr(owned.lock, "renew", renew_and_tell)
    owned.start()
    world.clock.advance(1)
    assert stuck.wait(SOON_S)
    renewed.clear()
    world.clock.advance(1)
    assert renewed.wait(SOON_S)
    world.store.is_down = True
    world.clock.advance(LOCK_TTL_S)
    assert world.told.wait(SOON_S)
    go_on.set()
    with pytest.raises(LockLost):
        owned.close()


def test_a_thief_is_noticed_by_the_renewal(world: World) -> None:
    owned = world.owner(renew_every_s=0.01)
    owned.open()
    world.clock.advance(LOCK_TTL_S + STAMP_MARGIN_S + 0.1)
    thief = world.owner("two")
    thief.open()
    owned.start()
    assert world.told.wait(SOON_S)
    with pytest.raises(LockLost):
        owned.close()
    assert len(world.lost) == 1, "told once, although two threads noticed"
    assert world.says()["owner"] == thief.lock.owner
    thief.close()
    assert (world.says()["state"], world.says()["generation"]) == ("free", 2)


def test_a_thief_is_noticed_by_the_upload(world: World) -> None:
    owned = world.owner(renew_every_s=1e9)
    owned.open()
    world.clock.advance(LOCK_TTL_S + STAMP_MARGIN_S + 0.1)
    world.owner("two").open()
    world.submit(owned, "late")
    world.clock.advance(PUSH_EVERY_S)
    with pytest.raises(LockLost, match=LOCK_KEY):
        owned.push_if_due()


def test_the_dead_of_this_machine_are_succeeded_at_once(world: World) -> None:
    owned = world.owner()
    owned.open()
    world.submit(owned, "not uploaded")
    owned._alive.close()  # as the kernel does when a process dies
    heir = world.owner()
    heir.open()
    assert heir.lock.generation == 2
    ledger = SqliteLedger(heir.ledger_path)
    assert [row.job.key for row in ledger.jobs()] == ["not uploaded"]
    ledger.close()
    heir.close()


def test_a_lock_taken_for_a_ledger_that_cannot_be_had_is_freed(world: World) -> None:
    world.store.lose_request("create", LEDGER_NAME)
    with pytest.raises(StoreError):
        world.owner().open()
    assert world.says()["state"] == "free"


def test_the_lock_is_freed_when_the_last_upload_fails(world: World) -> None:
    owned = world.owner()
    owned.open()
    world.submit(owned, "a")
    world.store.lose_request("replace", LEDGER_NAME)
    with pytest.raises(StoreError):
        owned.close()
    assert world.says()["state"] == "free"


def test_a_failed_upload_is_tried_again(world: World) -> None:
    owned = world.owner()
    owned.open()
    world.submit(owned, "a")
    for lose in (world.store.lose_request, world.store.lose_answer):
        lose("replace", LEDGER_NAME)
        world.clock.advance(PUSH_EVERY_S)
        owned.push_if_due()
    owned.close()
    assert not world.lost


def test_what_ends_a_thread_is_raised_in_the_owner(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = world.owner(push_every_s=0.01)
    owned.open()

    def push(self: LedgerCopy) -> bool:
        raise RuntimeError("never seen before")

    monkeypatch.setattr(LedgerCopy, "push", push)
    owned.start()
    world.clock.advance(1)
    assert world.told.wait(SOON_S)
    with pytest.raises(RuntimeError, match="never seen before"):
        owned.check()
    with pytest.raises(RuntimeError):
        owned.close()
