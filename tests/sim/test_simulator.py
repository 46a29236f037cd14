"""Many workers, every fault, hundreds of seeds: the promise holds; and bugs that must be found.

`SIM_SEEDS=137` plays one seed again, `SIM_SEEDS=1000:5000` looks further than a test run does.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from intermission.backends.ledger.memory import MemoryLedger
from intermission.engine import completion, receipt, run_task
from intermission.engine.receipt import quarantine, receipt_key
from intermission.model import Completion, Lease, Receipt
from intermission.ports.store import Store
from intermission.telemetry import OWNERSHIP_POINTS, POINTS
from intermission.testing.simulator import (
    FAULTS,
    MemoryLedgers,
    Results,
    SqliteLedgers,
    Violation,
    simulate,
)

CANARY_SEEDS = 500


def seeds(default: range) -> Sequence[int]:
    first, colon, last = os.environ.get("SIM_SEEDS", "").partition(":")
    if not first:
        return default
    return range(int(first), int(last)) if colon else [int(first)]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory where there is such a file system: what is tested is not the disk."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("undisturbed")
    return simulate(0, folder, MemoryLedgers, faults=()).results


@pytest.mark.parametrize("seed", seeds(range(400)))
def test_no_seed_breaks_the_promise(seed: int, scratch: Path, undisturbed: Results) -> None:
    simulate(seed, scratch, MemoryLedgers, expected=undisturbed)


@pytest.mark.parametrize("seed", seeds(range(30)))
def test_nor_on_a_real_ledger(seed: int, scratch: Path, undisturbed: Results) -> None:
    make = partial(SqliteLedgers, folder=scratch)
    simulate(seed, scratch / "files", make, expected=undisturbed)


def test_an_undisturbed_run_executes_every_task_once(scratch: Path) -> None:
    report = simulate(0, scratch, MemoryLedgers, faults=())
    assert set(report.executions.values()) == {1}
    assert len(report.executions) == 16
    assert not report.faults


def test_a_seed_plays_the_same_story_again(scratch: Path) -> None:
    for seed in range(1000, 1010):
        once, again = (simulate(seed, scratch / f"{seed}-{n}", MemoryLedgers) for n in range(2))
        assert once == again
    assert simulate(1, scratch / "1", MemoryLedgers).trace != once.trace


def test_the_seeds_meet_every_fault_and_every_fault_point(scratch: Path) -> None:
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    points: set[str] = set()
    for seed in range(2000, 2060):
        report = simulate(seed, scratch / str(seed), MemoryLedgers)
        faults += report.faults
        counts += report.counts
        points |= {line.partition(" point ")[2] for line in report.trace}
    assert set(faults) == set(FAULTS)
    assert counts.keys() >= {"lease lost", "completion refused", "task spoiled"}
    # A simulated worker's keeper has no thread of its own to be stopped in, and its workspace
    # no lock.
    assert points >= set(POINTS) - {"before-renew"} - set(OWNERSHIP_POINTS)


def overwriting(store: Store, made: Receipt) -> tuple[Receipt, bool]:
    """A commit that does not ask whether somebody was first."""
    store.replace(receipt_key(made.step, made.task_key), made.to_json().encode())
    return made, True


def stubborn(store: Store, made: Receipt) -> tuple[Receipt, bool]:
    """A commit that loses and goes on with its own result."""
    standing, ours = receipt.commit(store, made)
    return (standing if ours else made), ours


def forgetful(*_: object) -> None:
    """An adoption that never finds anything."""


def hasty(store: Store, key: str, _: bytes) -> None:
    """A withdrawal that takes whatever receipt stands there by now."""
    quarantine(store, [key])


class FencelessLedger(MemoryLedger):
    """Listens to whoever speaks last."""

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        rows = self._tables.rows
        known = [one for one in done if one.task_id in rows]
        return super().complete([replace(one, fence=rows[one.task_id].fence) for one in known])


class GenerousLedger(MemoryLedger):
    """Hands a task to a second worker under the fence of the first."""

    def claim(self, worker: str, capacity: int, **options: object) -> list[Lease]:
        leases = super().claim(worker, capacity, **options)  # type: ignore[arg-type]
        for lease in leases[:1]:
            row = self._tables.rows[lease.task_id]
            self._tables.put(replace(row, fence=max(row.fence - 1, 1)))
        return [replace(lease, fence=max(lease.fence - 1, 1)) for lease in leases[:1]] + leases[1:]


class NameBlindLedger(MemoryLedger):
    """Goes by ids alone, whatever they meant before it was restored."""

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        return super().complete([replace(one, key=None) for one in done])


def found_within(
    made: type[MemoryLedger], faults: Sequence[str], scratch: Path, first: int = 0
) -> str:
    """What the first seed says that notices a bug.

    One that few seeds notice is looked for from near such a seed, and then among all the others.
    """

    class Ledgers(MemoryLedgers):
        def create(self) -> MemoryLedger:
            return made(clock=self._clock)

    for n in range(CANARY_SEEDS):
        try:
            simulate((first + n) % CANARY_SEEDS, scratch, Ledgers, faults=faults)
        except Violation as e:
            return str(e)
        shutil.rmtree(scratch, ignore_errors=True)
    return "nothing"


@pytest.mark.parametrize(
    ("module", "bug", "faults", "first", "complaint"),
    [
        ((run_task, "commit"), overwriting, FAULTS, 0, "changed the standing receipt"),
        ((run_task, "commit"), stubborn, FAULTS, 0, "the ledger has"),
        ((run_task, "adopt"), forgetful, FAULTS, 0, "although it has a receipt"),
        (
            (completion, "withdraw"),
            hasty,
            ("corrupt", "crash", "lose", "stall"),
            145,
            "into quarantine",
        ),
    ],
)
def test_a_canary_in_the_engine_is_found(
    module: tuple[ModuleType, str],
    bug: Callable[..., object],
    faults: Sequence[str],
    first: int,
    complaint: str,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(*module, bug)
    story = found_within(MemoryLedger, faults, scratch, first)
    assert story.startswith("seed ")
    assert complaint in story


@pytest.mark.parametrize(
    ("ledger", "faults", "first", "complaint"),
    [
        (FencelessLedger, FAULTS, 0, "were answered"),
        (GenerousLedger, FAULTS, 0, "was handed out twice"),
        (NameBlindLedger, ("echo", "lose", "restore"), 243, "were answered"),
    ],
)
def test_a_canary_in_the_ledger_is_found(
    ledger: type[MemoryLedger], faults: Sequence[str], first: int, complaint: str, scratch: Path
) -> None:
    assert complaint in found_within(ledger, faults, scratch, first)
