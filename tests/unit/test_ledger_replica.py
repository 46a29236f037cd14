"""The ledger's working copy: the newest is found, earlier owners are fenced off, none is torn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from flaky_store import FlakyStore

from intermission.backends.ledger.object_ledger.replica import LEDGER_NAME, LedgerCopy
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.ledger.sqlite.snapshot import Snapshots
from intermission.errors import LedgerCorrupt, LedgerError, LedgerTooNew, LockLost, StoreError
from intermission.testing.clock import FakeClock
from intermission.testing.faults import Crashed, crashing
from intermission.testing.jobs import job, step, submit


class Machine:
    """A cache folder, and the copy of the owner that works there."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.folder = world.folder / name
        self.generation = 0
        self.copy = self._new_copy()

    def open(self) -> LedgerCopy:
        self.copy.close()
        self.generation += 1
        self.copy = self._new_copy()
        self.world.owner = self
        self.copy.open(f"{self.folder.name}-{self.generation}")
        return self.copy

    def _new_copy(self) -> LedgerCopy:
        return LedgerCopy(self.world.store, self.folder, lambda: self.world.confirm(self))

    def submit(self, key: str) -> None:
        ledger = SqliteLedger(self.copy.path)
        try:
            submit(ledger, job(step("one"), key=key))
        finally:
            ledger.close()

    def jobs(self) -> list[str]:
        return jobs_in(self.copy.path)


def jobs_in(path: Path) -> list[str]:
    ledger = SqliteLedger(path)
    try:
        return sorted(row.job.key for row in ledger.jobs())
    finally:
        ledger.close()


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FlakyStore(FakeClock())
        self.machines: list[Machine] = []
        self.owner: Machine | None = None
        self.confirmed = 0
        self.meanwhile: Callable[[], None] | None = None
        """Happens once, between the look at a version and the lock."""

    def machine(self, name: str) -> Machine:
        self.machines.append(Machine(self, name))
        return self.machines[-1]

    def confirm(self, machine: Machine) -> None:
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        if machine is not self.owner:
            raise LockLost("another machine has the lock.")
        self.confirmed += 1

    def stored_jobs(self) -> list[str]:
        """What a third machine would find."""
        path = self.folder / "looked-at.sqlite"
        path.write_bytes(self.store.read(LEDGER_NAME))
        return jobs_in(path)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for machine in world.machines:
        machine.copy.close()


def test_the_first_owner_starts_empty_and_is_in_the_store_at_once(world: World) -> None:
    first = world.machine("first")
    first.open()
    assert first.jobs() == []
    assert world.stored_jobs() == []
    assert world.confirmed == 1


def test_only_what_changed_is_uploaded(world: World) -> None:
    machine = world.machine("one")
    copy = machine.open()
    assert not copy.push()
    machine.submit("a")
    assert copy.push()
    assert not copy.push()
    assert world.stored_jobs() == ["a"]


def test_a_change_while_the_copy_is_made_is_for_the_next_upload(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = world.machine("one")
    copy = machine.open()
    machine.submit("a")
    save = Snapshots.save

    def save_and_go_on(self: Snapshots, to: Path, stamp: str) -> None:
        save(self, to, stamp)
        machine.submit("b")

    monkeypatch.setattr(Snapshots, "save", save_and_go_on)
    assert copy.push()
    monkeypatch.undo()
    assert world.stored_jobs() == ["a"]
    assert copy.push()
    assert world.stored_jobs() == ["a", "b"]


def test_an_upload_holds_what_is_still_in_the_log(world: World) -> None:
    machine = world.machine("one")
    copy = machine.open()
    ledger = SqliteLedger(copy.path)
    submit(ledger, job(step("one"), key="a"))
    assert copy.path.with_name(f"{LEDGER_NAME}-wal").stat().st_size > 0
    copy.push()
    ledger.close()
    assert world.stored_jobs() == ["a"]


def test_another_machine_continues_from_the_upload(world: World) -> None:
    first, second = world.machine("first"), world.machine("second")
    first.open()
    first.submit("a")
    first.copy.push()
    second.open()
    assert second.jobs() == ["a"]


def test_the_same_machine_keeps_what_it_had_not_uploaded(world: World) -> None:
    machine = world.machine("one")
    machine.open()
    machine.submit("a")
    machine.open()
    assert machine.jobs() == ["a"]
    assert world.stored_jobs() == ["a"], "opening uploads it"


def test_a_machine_that_was_overtaken_takes_the_store_s(world: World) -> None:
    first, second = world.machine("first"), world.machine("second")
    first.open()
    first.submit("never uploaded")
    second.open()
    second.submit("b")
    second.copy.push()
    first.open()
    assert first.jobs() == ["b"]


def test_an_overtaken_owner_cannot_upload_even_before_the_new_one_has(world: World) -> None:
    first, second = world.machine("first"), world.machine("second")
    first.open()
    second.open()
    first.submit("late")
    with pytest.raises(LockLost):
        first.copy.push()
    with pytest.raises(LockLost):
        first.copy.push()
    second.submit("b")
    assert second.copy.push()
    assert world.stored_jobs() == ["b"]


def test_a_last_upload_of_the_owner_before_is_taken_along(world: World) -> None:
    """It arrives after the new owner has looked, and before it has written."""
    first, second = world.machine("first"), world.machine("second")
    first.open()
    first.submit("late")

    def push() -> None:
        world.owner = first  # its request was on its way before the lock was lost
        assert first.copy.push()
        world.owner = second

    world.meanwhile = push
    second.open()
    assert second.jobs() == ["late"]
    first.submit("too late")
    with pytest.raises(LockLost):
        first.copy.push()


def test_an_owner_that_lost_its_lock_while_opening_writes_nothing(world: World) -> None:
    first, second = world.machine("first"), world.machine("second")
    first.open()
    before = world.store.stat(LEDGER_NAME)

    def steal() -> None:
        world.owner = first

    world.meanwhile = steal
    with pytest.raises(LockLost):
        second.open()
    assert world.store.stat(LEDGER_NAME) == before


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_a_torn_ledger_is_put_aside(world: World, kept: float) -> None:
    first, second = world.machine("first"), world.machine("second")
    first.open()
    first.submit("a")
    first.copy.push()
    whole = world.store.read(LEDGER_NAME)
    torn = whole[: int(len(whole) * kept)]
    world.store.replace(LEDGER_NAME, torn)
    second.open()
    assert second.jobs() == []
    assert world.stored_jobs() == []
    aside = second.folder / f"{LEDGER_NAME}.damaged"
    assert not torn or aside.read_bytes() == torn


@pytest.mark.parametrize("kind", ["garbage", "flipped", "one page", "foreign", "hollow"])
def test_what_is_no_ledger_is_put_aside(world: World, tmp_path: Path, kind: str) -> None:
    machine = world.machine("one")
    machine.open()
    machine.submit("a")
    machine.copy.push()
    whole = world.store.read(LEDGER_NAME)
    bad = {
        "garbage": lambda: os.urandom(50_000),
        "flipped": lambda: whole[:4096] + os.urandom(8192) + whole[12288:],
        "one page": lambda: whole[:-4096] + os.urandom(4096),
        "foreign": lambda: _database(tmp_path / "x", "CREATE TABLE t (a)"),
        "hollow": lambda: _without_meta(tmp_path / "x", whole),
    }[kind]()
    world.store.replace(LEDGER_NAME, bad)
    other = world.machine("other")
    other.open()
    assert other.jobs() == []
    assert (other.folder / f"{LEDGER_NAME}.damaged").exists()


def test_a_newer_program_s_ledger_is_refused_and_left_alone(world: World, tmp_path: Path) -> None:
    machine = world.machine("one")
    machine.open()
    newer = _database(tmp_path / "x", "PRAGMA user_version=9999", world.store.read(LEDGER_NAME))
    stat = world.store.replace(LEDGER_NAME, newer)
    with pytest.raises(LedgerTooNew):
        world.machine("other").open()
    assert world.store.stat(LEDGER_NAME) == stat


def test_a_damaged_ledger_is_not_uploaded(world: World) -> None:
    machine = world.machine("one")
    copy = machine.open()
    machine.submit("a")
    before = world.store.stat(LEDGER_NAME)
    db = apsw.Connection(str(copy.path))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    with copy.path.open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(os.urandom(4096))
    with pytest.raises(LedgerCorrupt):
        copy.push()
    assert world.store.stat(LEDGER_NAME) == before


def test_a_file_that_was_being_replaced_descends_from_nothing(world: World) -> None:
    first, second = world.machine("first"), world.machine("second")
    first.open()
    second.open()
    with crashing("before-ledger-backup"), pytest.raises(Crashed):
        first.open()
    assert not (first.folder / f"{LEDGER_NAME}.uploaded").exists()


def test_a_damaged_file_of_this_machine_gives_way_to_the_store_s(world: World) -> None:
    machine = world.machine("one")
    machine.open()
    machine.submit("a")
    machine.copy.push()
    machine.copy.close()
    machine.copy.path.write_bytes(b"not a ledger" * 1000)
    machine.open()
    assert machine.jobs() == ["a"]


def test_an_old_log_is_not_played_into_another_ledger(world: World) -> None:
    first, second = world.machine("first"), world.machine("second")
    first.open()
    first.submit("never uploaded")
    ledger = SqliteLedger(first.copy.path)
    submit(ledger, job(step("one"), key="in the log"))
    log = first.copy.path.with_name(f"{LEDGER_NAME}-wal")
    left = log.read_bytes()
    ledger.close()
    first.copy.close()
    log.write_bytes(left)
    second.open()
    second.submit("b")
    second.copy.push()
    first.open()
    assert first.jobs() == ["b"]


def test_a_wiped_prefix_starts_afresh(world: World) -> None:
    machine = world.machine("one")
    machine.open()
    machine.submit("a")
    machine.copy.push()
    world.store.delete(LEDGER_NAME)
    machine.open()
    assert machine.jobs() == []


@pytest.mark.parametrize("arrives", [True, False])
def test_an_upload_of_unknown_outcome_is_cleared_up_by_the_next(
    world: World, arrives: bool
) -> None:
    machine = world.machine("one")
    copy = machine.open()
    machine.submit("a")
    (world.store.lose_answer if arrives else world.store.lose_request)("replace", LEDGER_NAME)
    with pytest.raises(StoreError):
        copy.push()
    machine.submit("b")
    assert copy.push()
    assert world.stored_jobs() == ["a", "b"]


def test_an_unknown_outcome_does_not_hide_a_thief(world: World) -> None:
    first, second = world.machine("first"), world.machine("second")
    first.open()
    first.submit("a")
    world.store.lose_answer("replace", LEDGER_NAME)
    with pytest.raises(StoreError):
        first.copy.push()
    second.open()
    assert second.jobs() == ["a"]
    with pytest.raises(LockLost):
        first.copy.push()


def test_every_upload_is_sound_and_unlike_every_other(world: World, tmp_path: Path) -> None:
    machine = world.machine("one")
    for n in range(5):
        copy = machine.open()
        machine.submit(f"job-{n}")
        copy.push()
    bodies = [data for key, data in world.store.written if key == LEDGER_NAME]
    assert len(set(bodies)) == len(bodies) >= 10
    for n, data in enumerate(bodies):
        path = tmp_path / f"{n}.sqlite"
        path.write_bytes(data)
        db = apsw.Connection(str(path))
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA journal_mode").fetchall() == [("delete",)]
        db.close()


def test_nothing_temporary_is_left(world: World) -> None:
    machine = world.machine("one")
    copy = machine.open()
    (machine.folder / f".{LEDGER_NAME}.left-by-a-killed-process").touch()
    machine.submit("a")
    copy.push()
    machine.open().close()
    names = {path.name for path in machine.folder.iterdir()}
    assert names == {LEDGER_NAME, f"{LEDGER_NAME}.uploaded"}


def test_a_copy_must_be_open_to_be_pushed(world: World) -> None:
    with pytest.raises(LedgerError, match="not open"):
        world.machine("one").copy.push()


def _database(path: Path, sql: str, start: bytes = b"") -> bytes:
    path.write_bytes(start)
    db = apsw.Connection(str(path))
    db.execute(sql).fetchall()
    db.close()
    return path.read_bytes()


def _without_meta(path: Path, whole: bytes) -> bytes:
    return _database(path, "DROP TABLE meta", whole)
