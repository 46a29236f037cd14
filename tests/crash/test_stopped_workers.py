"""Workers that are stopped for longer than their lease, overtaken, and then continued.

The late worker may still finish what it was doing: its receipt loses, its completion is
refused, and it adopts what stands. One receipt, one `done` per task, and no task fails.
"""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from typing import Any

import apsw
import pytest
from bench import Bench, Run
from launcher import Launcher, descendants, kill, state, until

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.model import Event

SHORT = {"lease_ttl_s": 2.0, "renew_every_s": 0.3}
COUNT = 4


@pytest.fixture
def job(launcher: Launcher, tmp_path: Path) -> Bench:
    return Bench(launcher, tmp_path / "job", {"slots": 2, **SHORT}, {"count": COUNT})


def stop(bench: Bench, pids: list[int]) -> None:
    """Stop everyone, and nobody in the middle of a transaction.

    A stopped process keeps SQLite's lock, and then nobody can take over until it goes on: the
    others say so after five seconds. That is no lease's business.
    """

    def stopped_outside_a_transaction() -> bool:
        for pid in pids:
            kill(pid, signal.SIGSTOP)
        until(lambda: all(state(pid) in ("T", "") for pid in pids), "everyone to stop")
        if not locked(bench):
            return True
        go_on(pids)
        return False

    until(stopped_outside_a_transaction, "a stop outside a transaction")


def locked(bench: Bench) -> bool:
    """Whether a transaction is open, or somebody is just opening the ledger."""
    folder = os.open(bench.ledger.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(folder)
    connection = apsw.Connection(str(bench.ledger))
    try:
        connection.execute("BEGIN IMMEDIATE; ROLLBACK")
    except apsw.BusyError:
        return True
    else:
        return False
    finally:
        connection.close()


def go_on(pids: list[int]) -> None:
    for pid in pids:
        kill(pid, signal.SIGCONT)


def assert_one_of_everything(bench: Bench) -> None:
    bench.assert_right()
    assert len(bench.receipts()) == bench.tasks()
    history = events(bench)
    done = [event.task_id for event in history if event.task_id and event.now == "done"]
    assert len(done) == len(set(done)) == bench.tasks()
    assert not [event for event in history if event.now in ("failed", "retrying")]


def events(bench: Bench) -> list[Event]:
    ledger = SqliteLedger(bench.ledger)
    try:
        return ledger.events(limit=100_000)
    finally:
        ledger.close()


def running_cut(bench: Bench, **more: Any) -> Run:
    """A run that is in the middle of piece 0, and through with everything else it can do."""
    bench.hold(0)
    run = bench.start(**more)
    until(lambda: len(bench.receipts()) == 2 * COUNT - 1, "everything but piece 0")
    return run


def receipts(bench: Bench) -> dict[str, bytes]:
    folder = bench.workspace / "receipts"
    return {path.stem: path.read_bytes() for path in folder.glob("*/*.json")}


def test_a_whole_worker_overtaken_and_continued(job: Bench, tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    late = running_cut(job, patch=["announce_receipts", str(tried)])
    everyone, slots = descendants(late.pid), late.slots()
    stop(job, everyone)
    before = len(job.executions())
    other = job.start()
    job.wait_for_executions(before + 1)  # it has piece 0 for itself
    job.let_go(0)
    assert other.wait() == 0, other.said()
    job.assert_right()
    standing, told = receipts(job), tried.read_text().splitlines()
    # The slots first, so that nobody stops the late one before it has tried everything.
    go_on(slots)
    until(lambda: tried.read_text().splitlines() != told, "the late receipt to be written")
    assert receipts(job) == standing, "the late receipt was refused"
    go_on(everyone)
    assert late.wait() == 0, late.said()
    assert_one_of_everything(job)
    assert receipts(job) == standing
    assert late.last("closed")["failures"] == 0
    assert other.last("closed")["failures"] == 0


def test_a_late_worker_that_is_first_after_all(job: Bench) -> None:
    """Stopped past its lease and continued before the other has finished: one of them wins."""
    late = running_cut(job)
    everyone = descendants(late.pid)
    stop(job, everyone)
    before = len(job.executions())
    other = job.start()
    job.wait_for_executions(before + 1)
    go_on(everyone)
    job.let_go(0)
    assert late.wait() == 0, late.said()
    assert other.wait() == 0, other.said()
    assert_one_of_everything(job)
    assert late.last("closed")["failures"] == other.last("closed")["failures"] == 0


def test_only_the_supervisor_is_stopped(job: Bench) -> None:
    """Its slot goes on and writes the receipt; the other worker adopts it."""
    late = running_cut(job)
    stop(job, [late.pid])
    before = len(job.executions())
    other = job.start()
    job.wait_for_executions(before + 1)
    job.let_go(0)
    assert other.wait() == 0, other.said()
    go_on([late.pid])
    assert late.wait() == 0, late.said()
    assert_one_of_everything(job)


def test_a_stopped_slot_alone(job: Bench) -> None:
    """Its supervisor lives and renews, so nobody takes the task away, and nothing is lost."""
    run = running_cut(job)
    before = len(job.executions())
    slots = run.slots()
    stop(job, slots)
    # Another worker watches for longer than the lease and finds nothing to take.
    other = job.start()
    assert not other.ended_within(1.5 * SHORT["lease_ttl_s"])
    assert len(job.executions()) == before
    job.let_go(0)
    go_on(slots)
    assert run.wait() == 0, run.said()
    assert other.wait() == 0, other.said()
    assert_one_of_everything(job)
    assert job.again(before).total() == 2, "the weight of piece 0 and the join"


def test_a_killed_worker_is_overtaken_at_once(job: Bench) -> None:
    """No lease has to end: whoever comes finds the dead worker's lock free."""
    job.settings |= {"lease_ttl_s": 60.0, "renew_every_s": 15.0}
    dying = running_cut(job)
    dying.kill()
    job.let_go(0)
    other = job.start()
    assert other.wait(20.0) == 0, other.said()
    assert_one_of_everything(job)


def test_a_worker_that_cannot_renew_kills_its_work_in_time(job: Bench) -> None:
    """Before its lease ends, so that nobody else works on the task; and no attempt is counted."""
    job.settings |= {"lease_ttl_s": 4.0}  # enough for every task but the one that is held
    job.hold(0)
    run = job.start(patch=["refuse_renewals"])
    job.wait_for_executions(2)
    until(lambda: [one for one in events(job) if one.now == "abandoned"], "work to be given up")
    history = events(job)
    claimed, given_up = (
        next(one for one in history if one.task == "cut[0]" and one.now == state)
        for state in ("leased", "abandoned")
    )
    assert given_up.message == "its lease was lost"
    assert given_up.at_ms - claimed.at_ms < 4000
    assert not [one for one in history if one.now in ("failed", "retrying")]
    run.kill()
    job.launcher.assert_nobody_left()
    job.let_go(0)
    job.run()
    job.assert_right()
