"""One winner: of two that steal at the same instant, and of many over hundreds of seeds."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from owners import FAULTS, Broken, TextLedger, World

from intermission.backends.ledger.object_ledger import Ownership, replica
from intermission.backends.ledger.object_ledger.lock import LOCK_KEY, Lock, LockRecord
from intermission.backends.ledger.object_ledger.replica import LedgerCopy
from intermission.backends.store.local import LocalStore
from intermission.errors import WorkspaceBusy
from intermission.ports.clock import SystemClock

ROUNDS = 200
SEEDS = range(100)
CANARY_SEEDS = range(1000, 1300)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory where there is such a file system: what is tested is not the disk."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        yield Path(name)


def steal(folder: Path, name: str, victim: str) -> Lock | None:
    """Try until a victim's lock is taken; None when somebody else took it."""
    lock = Lock(LocalStore(folder), name, SystemClock(), stamp_margin_s=0.0)
    while True:
        try:
            lock.take()
        except WorkspaceBusy as e:
            if e.owner != victim:
                return None
        else:
            return lock


def leave_stale(folder: Path) -> Lock:
    """A lock held by somebody whose time is over at once, and who says no more."""
    lock = Lock(LocalStore(folder), "victim", SystemClock(), ttl_s=0.001, stamp_margin_s=0.0)
    lock.take()
    return lock


def test_of_two_threads_one_steals(scratch: Path) -> None:
    for turn in range(ROUNDS):
        victim = leave_stale(scratch)
        assert victim.generation == 2 * turn + 1
        start = threading.Barrier(2, timeout=30)

        def race(name: str, start: threading.Barrier = start, victim: Lock = victim) -> Lock | None:
            start.wait()
            return steal(scratch, name, victim.owner)

        with ThreadPoolExecutor(2) as pool:
            (winner,) = [lock for lock in pool.map(race, "ab") if lock is not None]
        assert winner.generation == 2 * turn + 2
        winner.release()


def test_of_two_processes_one_steals(scratch: Path) -> None:
    """Each racer says by one byte whether it won; the start is the same byte for both."""
    racers = {name: Racer(scratch / "bucket", name) for name in "ab"}
    try:
        for turn in range(ROUNDS):
            victim = leave_stale(scratch / "bucket")
            assert victim.generation == 2 * turn + 1
            for racer in racers.values():
                racer.tell(victim.owner)
            winners = [name for name, racer in racers.items() if racer.hear() == b"1"]
            assert len(winners) == 1, f"round {turn}: {winners} won"
            racers[winners[0]].tell("release")
            assert racers[winners[0]].hear() == b"2"
    finally:
        for racer in racers.values():
            racer.end()
    holding = LockRecord.from_json(LocalStore(scratch / "bucket").read(LOCK_KEY), "here")
    assert (holding.generation, holding.state) == (2 * ROUNDS, "free")


class Racer:
    """A process that steals when it is told whom from, and frees when it is told to."""

    def __init__(self, folder: Path, name: str) -> None:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._race(folder, name, orders, answers)
            finally:
                os._exit(0)
        os.close(orders)
        os.close(answers)

    def _race(self, folder: Path, name: str, orders: int, answers: int) -> None:
        lock = None
        while (order := os.read(orders, 1024).decode()) != "end":
            if order == "release":
                assert lock is not None
                lock.release()
                os.write(answers, b"2")
            else:
                lock = steal(folder, name, order)
                os.write(answers, b"0" if lock is None else b"1")

    def tell(self, order: str) -> None:
        os.write(self._orders, order.encode())

    def hear(self) -> bytes:
        return os.read(self._answers, 1)

    def end(self) -> None:
        self.tell("end")
        os.waitpid(self._pid, 0)
        os.close(self._orders)
        os.close(self._answers)


@pytest.fixture
def play(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], World]:
    monkeypatch.setattr(replica, "Snapshots", TextLedger)

    def play(seed: int) -> World:
        folder = scratch / str(seed)
        world = World(seed, folder)
        try:
            world.play()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return world

    return play


@pytest.mark.parametrize("seed", SEEDS)
def test_no_seed_gives_two_owners(seed: int, play: Callable[[int], World]) -> None:
    play(seed)


def test_the_seeds_meet_every_fault_and_do_some_work(play: Callable[[int], World]) -> None:
    met: Counter[str] = Counter()
    generations = uploads = 0
    for seed in range(10):
        world = play(seed)
        met += world.met
        generations += world.bucket.lock_owner[0]
        uploads += world.bucket.accepted[replica.LEDGER_NAME]
    assert set(met) == set(FAULTS)
    assert generations > 100
    assert uploads > generations


def blind(self: Lock, new: LockRecord, version: str | None) -> None:
    """Steals and renews without asking what is there."""
    found = self._store.stat(LOCK_KEY)
    WRITE_LOCK(self, new, None if found is None else found.version)


def forgetful(self: Lock, reason: str | None = None) -> None:
    """Frees by deleting, so that the generation starts again."""
    self._mine = None
    self._store.delete(LOCK_KEY)


def hasty(self: Lock, new: LockRecord, version: str | None) -> None:
    """Counts its time from the answer instead of from the request."""
    WRITE_LOCK(self, new, version)
    self.renewed_at_s = self._clock.monotonic_s()


def monotonous(self: LockRecord) -> bytes:
    """Says the same at every renewal."""
    return WRITE(replace(self, heartbeat=0))


def unfenced(self: LedgerCopy, stamp: str) -> None:
    """Trusts its lock, and writes the ledger only when it has something to say."""
    self._stamp = stamp
    self.path.parent.mkdir(parents=True, exist_ok=True)
    version = self._stored()
    self._snapshots = self._kept(version) or self._fetched(version)
    self._revision = self._snapshots.revision()


def trusting(self: Ownership) -> None:
    """Uploads without asking whether the lock is still its own."""


def careless(self: LedgerCopy, version: str | None) -> Any:
    """Keeps this machine's ledger, whatever was uploaded since."""
    return TextLedger(self.path) if self.path.exists() else None


def quick(data: bytes, where: str) -> LockRecord:
    """Thinks that a holder is gone before the holder does."""
    found = READ(data, where)
    return replace(found, ttl_s=20.0)


WRITE_LOCK = Lock._write
WRITE = LockRecord.to_json
READ = LockRecord.from_json
CANARIES = [
    (Lock, "_write", blind),
    (Lock, "release", forgetful),
    (Lock, "_write", hasty),
    (LedgerCopy, "open", unfenced),
    (LedgerCopy, "_kept", careless),
    (Ownership, "_renew", trusting),
    (LockRecord, "from_json", quick),
    (LockRecord, "to_json", monotonous),
]


@pytest.mark.parametrize(("kind", "name", "bug"), CANARIES, ids=lambda v: getattr(v, "__name__", v))
def test_a_bug_is_found(
    kind: type,
    name: str,
    bug: Callable[..., Any],
    play: Callable[[int], World],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kind, name, staticmethod(bug) if name == "from_json" else bug)
    for seed in CANARY_SEEDS:
        try:
            play(seed)
        except Broken:
            return
    pytest.fail(f"{len(CANARY_SEEDS)} seeds did not notice")
