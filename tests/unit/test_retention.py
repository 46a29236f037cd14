"""What a ledger forgets, and when: ended jobs that are old, in bites, and nothing else."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from intermission.backends.ledger.sqlite import SqliteLedger, database
from intermission.composition.fleet import Fleet
from intermission.errors import LedgerError
from intermission.maintenance import pruning
from intermission.maintenance.pruning import ENDED, forget_if_old, old_jobs
from intermission.model import Failure, Heartbeat, JobState, identity
from intermission.services.retention import Retention
from intermission.services.supervisor import Service
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import chunks, completion, fan_job, job, step, submit

DAY_S = 86_400
RUNNING = Service("retention", lambda _: None)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: FakeClock) -> SqliteLedger:
    return SqliteLedger(tmp_path / "ledger.sqlite", clock=clock)


def ended(ledger: SqliteLedger, name: str, state: JobState = JobState.DONE) -> str:
    made = submit(ledger, job(step("a"), key=identity(name)))
    if state is JobState.CANCELLED:
        ledger.cancel(made.key, reason="no")
        return made.key
    (lease,) = ledger.claim("w", 1, lease_ttl_s=60)
    if state is JobState.FAILED:
        ledger.fail([Failure(lease.task_id, lease.fence, "E", "no", permanent=True)])
    else:
        ledger.complete([completion(ledger, made, lease)])
    return made.key


def keys(ledger: SqliteLedger) -> set[str]:
    return {row.job.key for row in ledger.jobs()}


def server(ledger: SqliteLedger, clock: FakeClock, keep_s: float) -> Retention:
    app = SimpleNamespace(clock=clock)
    path = ledger.path
    fleet: Any = SimpleNamespace(app=app, open_ledger=lambda: SqliteLedger(path, clock=clock))
    return Retention(cast("Fleet", fleet), keep_s)


def test_a_server_forgets_what_ended_too_long_ago(
    ledger: SqliteLedger, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    old = {ended(ledger, state, state) for state in ENDED}
    clock.advance(20 * DAY_S)
    young = ended(ledger, "young")
    clock.advance(11 * DAY_S)
    waiting = submit(ledger, job(step("a"), key=identity("waiting"))).key
    with caplog.at_level(logging.INFO, "intermission"):
        assert server(ledger, clock, 30 * DAY_S).prune(RUNNING) == 3
    assert "jobs forgotten that ended more than 30 days ago: 3" in caplog.text
    assert keys(ledger) == {young, waiting}
    assert len(old) == 3
    assert server(ledger, clock, 30 * DAY_S).prune(RUNNING) == 0


def test_a_job_that_started_again_stays(ledger: SqliteLedger, clock: FakeClock) -> None:
    failed = ended(ledger, "a", JobState.FAILED)
    clock.advance(40 * DAY_S)
    now_ms = clock.now_ms()
    (row,) = old_jobs(ledger, now_ms)
    ledger.retry(failed)
    assert not forget_if_old(ledger, row.job.key, now_ms)
    (lease,) = ledger.claim("w", 1, lease_ttl_s=60)
    ledger.mark(failed, JobState.FAILED)  # given up while somebody works on it
    clock.advance(40 * DAY_S)
    assert not forget_if_old(ledger, failed, clock.now_ms())
    ledger.release([(lease.task_id, lease.fence)], reason="drain")
    assert forget_if_old(ledger, failed, clock.now_ms())


def test_pages_are_read_to_the_end(
    ledger: SqliteLedger, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "PAGE", 2)
    made = [ended(ledger, str(n)) for n in range(5)]
    clock.advance(1)
    assert [row.job.key for row in old_jobs(ledger, clock.now_ms())] == made[::-1]
    assert list(old_jobs(ledger, clock.now_ms(), pipeline="other")) == []
    assert list(old_jobs(ledger, clock.now_ms(), states=[JobState.FAILED])) == []
    assert server(ledger, clock, 0.5).prune(RUNNING) == 5


def big(ledger: SqliteLedger, count: int) -> str:
    made = submit(ledger, fan_job(key=identity("big")))
    (lease,) = ledger.claim("w", 1, lease_ttl_s=60)
    ledger.complete([completion(ledger, made, lease, chunks(count))])
    while leases := ledger.claim("w", 100, lease_ttl_s=60):
        ledger.complete([completion(ledger, made, one) for one in leases])
    return made.key


def rows(ledger: SqliteLedger, table: str) -> int:
    return ledger.database.connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_a_large_job_goes_in_bites(ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "DELETE_AT_ONCE", 10)
    key = big(ledger, 35)
    other = SqliteLedger(ledger.path)
    left: list[int] = []

    def pause(_: float) -> None:
        left.append(rows(ledger, "tasks"))
        assert not other.jobs(key), "nobody finds a job that is being removed"
        submit(other, job(step("a"), key=identity(str(len(left)))))  # nobody waits for it

    monkeypatch.setattr("intermission.backends.ledger.sqlite.database.time.sleep", pause)
    assert ledger.delete(key)
    assert left[0] == 37
    assert [before - after for before, after in pairwise(left)][-2:] == [9, 9]
    assert rows(ledger, "tasks") == len(left)  # of the jobs that came meanwhile
    assert rows(ledger, "forgotten") == 0
    other.close()


def test_what_a_process_left_undone_the_next_one_does(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = big(ledger, 5)
    done = [row.id for row in ledger.tasks(key)]
    other = ended(ledger, "other")

    def killed(_: int) -> None:
        raise LedgerError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(ledger.database, "_delete_rest", killed)
        with pytest.raises(LedgerError):
            ledger.delete(key)
    assert keys(ledger) == {other}
    assert rows(ledger, "tasks") == 8
    assert ledger.invalidate(done, reason="gone") == []
    assert not ledger.delete(key)
    assert ledger.delete(other)
    assert rows(ledger, "tasks") == rows(ledger, "events") == rows(ledger, "forgotten") == 0


def test_a_late_owner_finds_nothing_of_a_job_that_is_half_removed(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = submit(ledger, job(step("a"), key=identity("a")))
    (lease,) = ledger.claim("w", 1, lease_ttl_s=60)
    ledger.release([(lease.task_id, lease.fence)], reason="drain")
    monkeypatch.setattr(ledger.database, "_delete_rest", lambda _: None)
    assert ledger.delete(made.key)
    renewal = ledger.renew("w", [Heartbeat(lease.task_id, lease.fence)], lease_ttl_s=60)
    assert renewal.lost == {lease.task_id}
    assert ledger.workers() == []
