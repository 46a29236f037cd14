"""Power loss at 2,000 instants of a job's life: what was reported done is done.

A SIGKILL tests no fsync, because the page cache survives it. So a run is recorded, write by
write, and from the record the disk is made as it may be after the power failed: what was synced
is there, and of the rest anything. Every such disk is opened and looked at, and on some of them
the job is run to its end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest
from bench import Bench
from launcher import Launcher
from recording import Recording, begin, record

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.store.local import LocalStore
from intermission.engine.receipt import fetched_files, peek
from intermission.model import Output, TaskState
from intermission.testing.power import Disk, Image, Remove

IMAGES = 2000
RESUMED = 48
COUNT = 3
MEMORY = Path("/dev/shm")
"""Where it exists, disks are made there: nobody has to sync a disk that is thrown away."""
KEEP = (0.0, 0.1, 0.5, 0.9, 1.0)


@dataclass(frozen=True)
class Crash:
    """A disk after the power failed, and what had been reported before."""

    at: int
    image: Image
    reported: list[str]
    ended: bool


def crashes(recording: Recording, count: int, rng: random.Random) -> Iterator[Crash]:
    """Disks at random instants, in the order of these instants."""
    disk = Disk(recording.root)
    instants = sorted(
        rng.randint(recording.begins, len(recording.operations)) for _ in range(count)
    )
    applied = 0
    for instant in instants:
        for operation in recording.operations[applied:instant]:
            disk.apply(operation)
        applied = instant
        lines: list[dict[str, Any]] = [
            json.loads(mark.line) for mark in recording.marks if mark.at <= instant
        ]
        done = [line["done"] for line in lines if "done" in line]
        ended = any(line.get("state") == "done" for line in lines)
        yield Crash(instant, disk.image(rng, rng.choice(KEEP)), done, ended)


def put(image: Image, root: str, to: Path) -> None:
    """Make a disk's contents real in a folder."""
    to.mkdir(parents=True)
    for path, data in image.items():
        place = to / Path(path).relative_to(root)
        if data is None:
            place.mkdir()
        else:
            place.write_bytes(data)


def assert_kept(bench: Bench, crash: Crash) -> None:
    """What had been reported, to a person or to the ledger, has a receipt that holds."""
    store = LocalStore(bench.workspace)
    for name in crash.reported:
        assert_receipt(store, *name.split("/"))
    if crash.ended:
        assert bench.output.read_bytes() == bench.expected
    if not bench.ledger.exists():
        return
    ledger = SqliteLedger(bench.ledger)
    try:
        for row in ledger.jobs():
            for task in ledger.tasks(row.job.key, states=[TaskState.DONE]):
                assert_receipt(store, task.step, task.key)
    finally:
        ledger.close()
    connection = apsw.Connection(str(bench.ledger))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def assert_receipt(store: LocalStore, step: str, key: str) -> None:
    receipt = peek(store, step, key)
    assert receipt is not None, f"{step} {key} was done, and has no receipt"
    dict(fetched_files(store, Output(key, receipt.result, receipt.files), Path("unused")))


def boot_again(bench: Bench) -> None:
    """Power fails, and the machine starts: the ledger's monotonic times are of another boot."""
    if bench.ledger.exists():
        connection = apsw.Connection(str(bench.ledger))
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchall():
            connection.execute("UPDATE meta SET value = 'an earlier boot' WHERE name = 'boot'")
        connection.close()


def assert_resumes(bench: Bench) -> None:
    store = LocalStore(bench.workspace)
    sound = {name for name in bench.receipts() if peek(store, *name.split("/")) is not None}
    boot_again(bench)
    bench.run(within_s=30.0)
    bench.assert_right()
    again = bench.again()
    assert not sound & set(again), "executed although it had a receipt"


def undisturbed(recording: Recording, bench: Bench, strace: str) -> None:
    record(recording, bench, strace)


def a_slot_dies_after_its_receipt(recording: Recording, bench: Bench, strace: str) -> None:
    """Another slot adopts a receipt that its maker could not sync."""
    memory = str(bench.folder / "died")
    record(recording, bench, strace, patch=["die_once_after_receipt", memory])


def the_supervisor_dies(recording: Recording, bench: Bench, strace: str) -> None:
    """The next run goes on with what the first one left, synced or not."""
    record(recording, bench, strace, -9, patch=["die_at", "before-complete", 3])
    record(recording, bench, strace)


def the_ledger_is_lost_as_well(recording: Recording, bench: Bench, strace: str) -> None:
    record(recording, bench, strace, -9, patch=["die_at", "before-complete", 4])
    for path in sorted(bench.workspace.glob("ledger.sqlite*")):
        path.unlink()
        if not path.name.endswith("-shm"):
            recording.put(Remove(str(path)), removed=str(path))
    record(recording, bench, strace)


SCENES = (
    undisturbed,
    a_slot_dies_after_its_receipt,
    the_supervisor_dies,
    the_ledger_is_lost_as_well,
)


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
def test_what_was_reported_done_is_done(
    scene: Callable[[Recording, Bench, str], None],
    launcher: Launcher,
    tmp_path: Path,
    require: Callable[[str], str],
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)
    original = Bench(launcher, tmp_path / "recorded", {"slots": 2}, {"count": COUNT})
    recording = begin(original)
    scene(recording, original, require("strace"))
    assert len(recording.operations) > 400
    assert sum(b'"done"' in mark.line for mark in recording.marks) > 2 * COUNT
    for no, crash in enumerate(crashes(recording, IMAGES // len(SCENES), rng)):
        with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as folder:
            bench = Bench(launcher, Path(folder), {"slots": 2}, {"count": COUNT}, made=False)
            put(crash.image, recording.root, bench.media)
            try:
                assert_kept(bench, crash)
                if no % (IMAGES // RESUMED) == 0:
                    assert_resumes(bench)
            except Exception as e:
                raise AssertionError(f"power lost after operation {crash.at}: {e}") from e
