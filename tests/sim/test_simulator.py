"""Many workers, every fault, hundreds of seeds: the promise holds; and bugs that must be found.

`SIM_SEEDS=137` plays one seed again, `SIM_SEEDS=1000:5000` looks further than a test run does.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from intermission.backends.ledger.memory import MemoryLedger
from intermission.engine import receipt, record, run_task
from intermission.engine.receipt import find, quarantine, receipt_key
from intermission.model import Completion, Lease, Receipt
from intermission.ports.store import Store
from intermission.telemetry import POINTS
from intermission.testing.simulator import (
    FAULTS,
    MemoryLedgers,
    Report,
    Results,
    SqliteLedgers,
    Violation,
    simulate,
)

BATCHES = 15
SEEDS_PER_BATCH = 20
SQLITE_SEEDS = 12
CANARY_SEEDS = 200


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


@pytest.fixture
def undisturbed(scratch: Path) -> Results:
    return simulate(0, scratch / "undisturbed", MemoryLedgers, faults=()).results


def play(seed: int, scratch: Path, expected: Results) -> Report:
    folder = scratch / str(seed)
    try:
        return simulate(seed, folder, MemoryLedgers, expected=expected)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_seed_breaks_the_promise(batch: int, scratch: Path, undisturbed: Results) -> None:
    first = batch * SEEDS_PER_BATCH
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    chosen = seeds(range(first, first + SEEDS_PER_BATCH))
    for seed in chosen if batch == 0 or len(chosen) == SEEDS_PER_BATCH else ():
        report = play(seed, scratch, undisturbed)
        faults += report.faults
        counts += report.counts
    if "SIM_SEEDS" not in os.environ:
        assert len(faults) > len(FAULTS) / 2, "these seeds break too little"
        assert {"lease lost", "completion refused"} <= counts.keys()
