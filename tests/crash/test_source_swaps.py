"""A source that changes: between runs, unnoticeably, and while it is being worked on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench import Bench
from launcher import Launcher

AT_ONCE_S = 20.0


@pytest.fixture
def job(launcher: Launcher, tmp_path: Path) -> Bench:
    return Bench(launcher, tmp_path / "job", {"slots": 2}, {"count": 4})


def test_a_same_size_edit_with_its_time_stamp_restored(job: Bench) -> None:
    """The content is what counts: everything runs again, although size and time are the same."""
    job.run()
    before, stat = len(job.executions()), job.source.stat()
    job.source.write_bytes(job.source.read_bytes().swapcase())
    os.utime(job.source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert job.source.stat().st_size == stat.st_size
    assert job.source.stat().st_mtime_ns == stat.st_mtime_ns
    run = job.run(within_s=AT_ONCE_S)
    assert run.last("opened")["reused"] == 0
    # The plan reads the source, too; what does not, hangs on what does.
    assert job.again(before).total() == job.tasks()
    job.assert_right()


def test_touched_but_not_changed(job: Bench) -> None:
    job.run()
    before = len(job.executions())
    job.source.touch()
    job.run(within_s=AT_ONCE_S)
    assert not job.again(before)


def test_changed_and_changed_back(job: Bench) -> None:
    """The first content's receipts are still there, and its output is published again."""
    first = job.source.read_bytes()
    job.run()
    job.source.write_bytes(first.upper())
    job.run()
    job.assert_right()
    before = len(job.executions())
    job.source.write_bytes(first)
    job.run(within_s=AT_ONCE_S)
    job.assert_right()
    assert not job.again(before)


@pytest.mark.parametrize("how", ["written over", "renamed over"])
def test_replaced_while_it_is_worked_on(how: str, job: Bench) -> None:
    """No task mixes two contents: the job fails with a clear sentence, the next run is right."""
    job.hold(0, 1, 2, 3)
    run = job.start()
    job.wait_for_executions(3)
    new = job.source.read_bytes().swapcase()
    if how == "written over":
        job.source.write_bytes(new)
    else:
        other = job.media / "other"
        other.write_bytes(new)
        other.rename(job.source)
    job.let_go(0, 1, 2, 3)
    assert run.wait() == 1, run.said()
    closed = run.last("closed")
    assert closed["state"] == "failed"
    assert "is not the file this job was planned for" in closed["last_failure"]
    assert "Run the same command again" in closed["last_failure"]
    assert not job.output.exists()
    job.run(within_s=AT_ONCE_S)
    assert job.output.read_bytes() == job.expected


def test_removed_while_it_is_worked_on(job: Bench) -> None:
    content = job.source.read_bytes()
    job.hold(0)
    run = job.start()
    job.wait_for_executions(2)
    job.source.unlink()
    job.let_go(0)
    assert run.wait() == 1, run.said()
    assert "source.txt" in run.last("closed")["last_failure"]
    had, before = job.receipts(), len(job.executions())
    job.source.write_bytes(content)
    job.run(within_s=AT_ONCE_S)
    job.assert_right()
    assert not had & set(job.again(before))
