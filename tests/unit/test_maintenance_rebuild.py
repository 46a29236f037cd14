"""A ledger from receipts alone: everything that is finished is found, and nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_bench import Bench

from intermission.engine.planning import expand
from intermission.errors import StoreError
from intermission.maintenance.rebuild import (
    Rebuilt,
    adopt_all,
    needs_shared_ledger,
    rebuild,
    remember_job,
    remembered_jobs,
)
from intermission.model import JobState, Limit, TaskState
from intermission.testing.simulator.sample_pipeline import GAP

WITH_RECEIPTS = {
    *("audio", "parts", "pages", "hear[0]", "hear[1]", "hear[2]"),
    *("mark[0]", "mark[1]", "look[0]", "look[1]"),
}
"""What can be adopted before the gap and the step without receipts have run again."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.submit()
    return made


def after_the_loss(bench: Bench) -> Bench:
    """The same workspace with a new, empty ledger."""
    new = Bench(bench.scratch)
    new.store, new.outputs, new.work = bench.store, bench.outputs, bench.work
    return new


def test_everything_finished_is_adopted_and_nothing_is_run(bench: Bench) -> None:
    bench.finish_all()
    new = after_the_loss(bench)
    found = rebuild(new.ledger, new.store, new.scratch)
    assert found == {bench.job.key: Rebuilt(len(WITH_RECEIPTS), len(WITH_RECEIPTS), 16)}
    assert new.ran == []
    done = {name for name, state in new.states().items() if state is TaskState.DONE}
    assert done == WITH_RECEIPTS
    assert not new.ledger.workers(), "no lease was needed"


def test_no_limit_hides_a_receipt(bench: Bench) -> None:
    bench.finish_all()
    new = after_the_loss(bench)
    new.ledger.limit(Limit(f"pipeline:{bench.job.pipeline}", paused=True))
    found = rebuild(new.ledger, new.store, new.scratch)
    assert found[bench.job.key].adopted == len(WITH_RECEIPTS)


def test_what_the_ledger_knows_as_finished_is_told_as_finished(bench: Bench) -> None:
    bench.finish_all()
    done = sum(state is TaskState.DONE for state in bench.states().values())
    found = rebuild(bench.ledger, bench.store, bench.scratch)
    assert found == {bench.job.key: Rebuilt(0, done, 16)}


def test_a_task_that_somebody_holds_is_left_to_them(bench: Bench) -> None:
    bench.finish_all()
    new = after_the_loss(bench)
    new.ledger.submit(bench.job, expand(bench.job, {}))
    held = new.take(10)
    found = rebuild(new.ledger, new.store, new.scratch)
    assert found[bench.job.key].adopted == 0
    assert {new.states()[lease.step] for lease in held} == {TaskState.LEASED}


def test_after_a_rebuild_only_what_has_no_receipt_runs(bench: Bench) -> None:
    bench.finish_all()
    new = after_the_loss(bench)
    rebuild(new.ledger, new.store, new.scratch)
    assert set(new.finish_all()) == {"level[0]", "level[1]", "level[2]", f"mark[{GAP}]"}
    assert new.ledger.jobs()[0].state is JobState.DONE
    assert new.receipt("stamp") == bench.receipt("stamp")


def test_a_rebuild_counts_no_attempts(bench: Bench) -> None:
    bench.finish(bench.take()[0])
    new = after_the_loss(bench)
    for _ in range(5):
        rebuild(new.ledger, new.store, new.scratch)
    rows = {row.name: (row.state, row.attempts) for row in new.ledger.tasks(new.job.key)}
    assert rows["audio"] == (TaskState.DONE, 0)
    assert rows["parts"] == (TaskState.PENDING, 0)


def test_a_lost_file_is_not_adopted(bench: Bench) -> None:
    bench.finish_all()
    key = bench.spoil_file("hear[0]")
    new = after_the_loss(bench)
    rebuild(new.ledger, new.store, new.scratch)
    assert new.states()["hear[0]"] is TaskState.PENDING
    assert new.states()["mark[0]"] is TaskState.BLOCKED
    assert key in new.quarantined()
    ran = new.finish_all()
    assert ran.count("hear[0]") == 1
    assert "mark[0]" not in ran, "what hung on it has a receipt of its own"


def test_a_fan_in_over_gaps_is_adopted_under_its_own_key(bench: Bench) -> None:
    bench.finish_all()
    receipts = bench.keys("receipts/join/")
    new = after_the_loss(bench)
    rebuild(new.ledger, new.store, new.scratch)
    while new.states()["join"] is not TaskState.PENDING:
        new.finish(new.take()[0])
    assert adopt_all(new.ledger, new.store, new.job, new.scratch) == 2
    assert new.ledger.jobs()[0].state is JobState.DONE
    assert new.keys("receipts/join/") == receipts


def test_a_workspace_without_jobs_gives_an_empty_ledger(bench: Bench, tmp_path: Path) -> None:
    empty = Bench(tmp_path)
    assert rebuild(empty.ledger, empty.store, empty.scratch) == {}
    assert empty.ledger.jobs() == []


def test_a_job_is_remembered_once_and_whole(bench: Bench) -> None:
    (before,) = bench.store.list("jobs/")
    remember_job(bench.store, bench.job)
    assert list(bench.store.list("jobs/")) == [before]
    assert list(remembered_jobs(bench.store)) == [bench.job]


def test_it_is_remembered_that_a_shared_ledger_has_a_job(bench: Bench, tmp_path: Path) -> None:
    assert not needs_shared_ledger(bench.store)
    remember_job(bench.store, bench.job, in_shared_ledger=True)  # it was remembered without
    assert needs_shared_ledger(bench.store)
    new = Bench(tmp_path)
    remember_job(new.store, new.job, in_shared_ledger=True)
    assert needs_shared_ledger(new.store)
    (only,) = new.store.list("")
    assert only.key == f"jobs/{new.job.key}.json"
    remember_job(new.store, new.job)
    assert needs_shared_ledger(new.store)


def test_what_is_no_job_is_named_with_a_remedy(bench: Bench) -> None:
    for garbage in (b"", b"[]", b'{"key": "k"}', b"\xff"):
        bench.store.replace("jobs/broken.json", garbage)
        with pytest.raises(StoreError, match=r"jobs/broken\.json") as caught:
            list(remembered_jobs(bench.store))
        assert caught.value.remedy
