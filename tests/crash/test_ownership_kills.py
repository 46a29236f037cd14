"""A kill at every fault point of owning a workspace, then the same command, here or elsewhere.

Whatever was uploaded when, nothing that has a receipt is executed again, the lock finds its
next owner, and each ledger that ever was in the bucket is sound.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import apsw
import pytest
from launcher import PATIENCE_S, kill, state, until
from owning import Bucket, ended, forked, killed_at, own, run

from intermission.backends.ledger.object_ledger.lock import LOCK_KEY
from intermission.backends.ledger.object_ledger.replica import LEDGER_NAME
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.errors import LockLost
from intermission.model import JobState
from intermission.telemetry import OWNERSHIP_POINTS
from intermission.testing.jobs import job, step, submit

ONCE = ("before-lock-take", "after-lock-take", "before-lock-free", "after-lock-free")
KILLS = [(point, nth) for point in OWNERSHIP_POINTS for nth in ((1,) if point in ONCE else (1, 4))]

WITHOUT_RECEIPT = {"level", "mark"}
"""Steps of which some task has none: one is not durable, one fails and is skipped."""


def executions(folder: Path) -> Counter[str]:
    journal = folder / "journal"
    return Counter(journal.read_text().split() if journal.exists() else ())


def receipts(folder: Path) -> set[str]:
    found = (folder / "bucket" / "receipts").glob("*/*.json")
    return {f"{path.parent.name}/{path.stem}" for path in found}


def lock(folder: Path) -> dict[str, object]:
    return json.loads((folder / "bucket" / LOCK_KEY).read_bytes())


def assert_sound(path: Path) -> None:
    db = apsw.Connection(str(path))
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    db.close()


def assert_done(folder: Path, *, generation: int) -> None:
    assert (lock(folder)["state"], lock(folder)["generation"]) == ("free", generation)
    uploaded = folder / "uploaded.sqlite"
    shutil.copy(folder / "bucket" / LEDGER_NAME, uploaded)
    assert_sound(uploaded)
    ledger = SqliteLedger(uploaded)
    (row,) = ledger.jobs()
    assert row.state is JobState.DONE
    ledger.close()
    for version in (folder / "versions").iterdir():
        assert_sound(version)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(("point", "nth"), KILLS)
def test_the_next_run_continues(point: str, nth: int, elsewhere: bool, tmp_path: Path) -> None:
    assert killed_at(point, nth, partial(run, tmp_path, "one")) == -signal.SIGKILL
    had, before = receipts(tmp_path), executions(tmp_path)
    taken = lock(tmp_path)["generation"] if (tmp_path / "bucket" / LOCK_KEY).exists() else 0
    assert isinstance(taken, int)
    run(tmp_path, "two" if elsewhere else "one", later=True)
    again = executions(tmp_path) - before
    assert not had & set(again), "executed although it had a receipt"
    assert_done(tmp_path, generation=taken + 1)


def test_a_machine_continues_its_own_dead_at_once(tmp_path: Path) -> None:
    """Nobody waits for the lock of a process that this machine knows to be dead."""
    assert killed_at("before-ledger-backup", 4, partial(run, tmp_path, "one")) == -signal.SIGKILL
    run(tmp_path, "one")
    assert_done(tmp_path, generation=2)
    assert max(executions(tmp_path).values()) == 1, "this machine's ledger was kept"


def test_any_uploaded_ledger_may_be_put_back(tmp_path: Path) -> None:
    """Also one from before everything: the receipts tell what is finished."""
    run(tmp_path, "one")
    versions = sorted((tmp_path / "versions").iterdir())
    before = executions(tmp_path)
    assert len(versions) > 10
    for generation, version in enumerate(versions, 2):
        Bucket(tmp_path).replace(LEDGER_NAME, version.read_bytes())
        run(tmp_path, "one" if generation % 2 else "two")
        assert_done(tmp_path, generation=generation)
    again = executions(tmp_path) - before
    assert {name.split("/")[0] for name in again} <= WITHOUT_RECEIPT


def test_the_ledger_may_be_lost_altogether(tmp_path: Path) -> None:
    run(tmp_path, "one")
    before = executions(tmp_path)
    Bucket(tmp_path).delete(LEDGER_NAME)
    run(tmp_path, "one")
    again = executions(tmp_path) - before
    assert {name.split("/")[0] for name in again} <= WITHOUT_RECEIPT
    assert_done(tmp_path, generation=2)


def test_a_stopped_owner_comes_back_too_late(tmp_path: Path) -> None:
    """It is stopped past its lock's life; what it then tries is refused, and harms nobody."""
    read, write = os.pipe()

    def hold() -> None:
        owned = own(tmp_path, "one")
        owned.open()
        ledger = SqliteLedger(owned.ledger_path)
        submit(ledger, job(step("one"), key="late"))
        os.write(write, b"ready")
        os.kill(os.getpid(), signal.SIGSTOP)
        for attempt in (owned.push_if_due, owned.renew_if_due):
            try:
                attempt()
            except LockLost:
                continue
            os._exit(3)
        os._exit(0)

    pid = forked(hold)
    try:
        assert os.read(read, 5) == b"ready"
        until(lambda: state(pid) == "T", "the owner to stop")
        thief = own(tmp_path, "two", later=True)
        thief.open()
        uploaded = Bucket(tmp_path).stat(LEDGER_NAME)
        kill(pid, signal.SIGCONT)
        until(lambda: state(pid) in ("Z", ""), "the owner to end", PATIENCE_S)
    finally:
        kill(pid)
        status = ended(pid)
        os.close(read)
        os.close(write)
    assert status == 0, "a late renewal or upload was accepted"
    assert Bucket(tmp_path).stat(LEDGER_NAME) == uploaded
    assert (lock(tmp_path)["owner"], lock(tmp_path)["generation"]) == (thief.lock.owner, 2)
    thief.close()
