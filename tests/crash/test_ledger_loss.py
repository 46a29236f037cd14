"""The ledger lost, restored from an old copy, or damaged: the receipts still tell what is done."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest
from bench import Bench
from launcher import Launcher, until

from intermission.testing.faults import crash_at

AT_ONCE_S = 20.0
SUFFIXES = ("", "-wal", "-shm")


def remove_ledger(bench: Bench) -> None:
    for suffix in SUFFIXES:
        Path(f"{bench.ledger}{suffix}").unlink(missing_ok=True)


def half_done(bench: Bench) -> set[str]:
    """Kill a run that has finished about half of its tasks. The tasks that have a receipt."""
    bench.hold(10, 11)
    run = bench.start()
    until(lambda: len(bench.receipts()) >= 12, "some receipts")
    run.kill()
    bench.launcher.assert_nobody_left()
    bench.let_go(10, 11)
    return bench.receipts()


def assert_nothing_redone(bench: Bench, had: set[str], before: int) -> None:
    run = bench.run(within_s=AT_ONCE_S)
    bench.assert_right()
    again = bench.again(before)
    assert not had & set(again)
    closed = run.last("closed")
    assert closed["executed"] == again.total() == bench.tasks() - len(had)


@pytest.fixture
def job(launcher: Launcher, tmp_path: Path) -> Bench:
    return Bench(launcher, tmp_path / "job", {"slots": 4}, {"count": 12, "nap_ms": 10})


def test_deleted_between_runs(job: Bench) -> None:
    had = half_done(job)
    remove_ledger(job)
    assert_nothing_redone(job, had, len(job.executions()))


def test_deleted_after_the_end(job: Bench) -> None:
    job.run()
    remove_ledger(job)
    had = job.receipts()
    assert len(had) == job.tasks()
    assert_nothing_redone(job, had, len(job.executions()))


@pytest.mark.parametrize("what", ["deleted", "replaced by an older one"])
def test_taken_from_under_a_living_run(what: str, job: Bench, tmp_path: Path) -> None:
    """The run notices and says so, instead of working on with a ledger that nobody else sees."""
    old = tmp_path / "old"
    job.hold(10, 11)
    job.settings |= {"renew_every_s": 0.3}
    run = job.start()
    until(lambda: len(job.receipts()) >= 3, "some receipts")
    backup(job, old)
    until(lambda: len(job.receipts()) >= 6, "more receipts")
    remove_ledger(job)
    if what != "deleted":
        shutil.copyfile(old, job.ledger)
    assert run.wait(AT_ONCE_S) == 4, run.said()
    fault = run.last("fault")
    assert "was removed or replaced while it was in use" in fault["fault"]
    assert "run the same command again" in fault["remedy"]
    job.launcher.assert_nobody_left()
    job.let_go(10, 11)
    remove_ledger(job)  # the old one may have leases of the run that has just ended
    assert_nothing_redone(job, job.receipts(), len(job.executions()))


def backup(bench: Bench, to: Path) -> None:
    """A sound copy of a ledger that is in use."""
    connection = apsw.Connection(str(bench.ledger))
    connection.set_busy_timeout(10_000)
    connection.execute("VACUUM INTO ?", (str(to),))
    connection.close()


@pytest.mark.parametrize("ended", ["killed", "done"])
def test_restored_from_older_copies(ended: str, job: Bench, tmp_path: Path) -> None:
    # A copy may hold leases of workers long buried; those end by their time alone.
    job.settings |= {"lease_ttl_s": 2, "renew_every_s": 0.5}
    job.hold(10, 11)
    run = job.start()
    copies: list[Path] = []
    for count in (1, 4, 8, 12):
        until(lambda count=count: len(job.receipts()) >= count, f"{count} receipts")
        copies.append(tmp_path / f"copy-{count}")
        backup(job, copies[-1])
    if ended == "killed":
        run.kill()
        job.launcher.assert_nobody_left()
        job.let_go(10, 11)
    else:
        job.let_go(10, 11)
        assert run.wait() == 0
    for copy in copies:
        had = job.receipts()
        remove_ledger(job)
        shutil.copyfile(copy, job.ledger)
        assert_nothing_redone(job, had, len(job.executions()))


@pytest.mark.parametrize("nth", [1, 2])
def test_a_killed_rebuild_holds_nobody_up(nth: int, job: Bench) -> None:
    had = half_done(job)
    order = job.order(env=crash_at("before-complete", nth), do="rebuild")
    process = job.launcher.start_cold(order)
    assert process.wait(AT_ONCE_S) == -9
    assert_nothing_redone(job, had, len(job.executions()))


def test_a_damaged_ledger_is_refused_and_rebuilt(job: Bench) -> None:
    had = half_done(job)
    for suffix in SUFFIXES[1:]:
        Path(f"{job.ledger}{suffix}").unlink(missing_ok=True)
    job.ledger.write_bytes(b"this is not a database" * 400)
    refused = job.start()
    assert refused.wait() in (1, 4)
    assert "intermission rebuild" in str(refused.said()), refused.said()
    rebuilt = job.start(do="rebuild")
    assert rebuilt.wait() == 0, rebuilt.said()
    assert_nothing_redone(job, had, len(job.executions()))
