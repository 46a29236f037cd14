"""Finished work that was damaged afterwards: exactly that task, and what depends on it, runs again.

What was altered is kept in quarantine. Nothing else is executed, and the output is right again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bench import Bench
from launcher import Launcher, until

AT_ONCE_S = 20.0
COUNT = 6
PIECE = "artifacts/cut/*/*/piece.bin"


@pytest.fixture
def job(launcher: Launcher, tmp_path: Path) -> Bench:
    """A finished job of fourteen tasks."""
    bench = Bench(launcher, tmp_path / "job", {"slots": 2}, {"count": COUNT})
    bench.run()
    bench.assert_right()
    return bench


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def delete(path: Path) -> None:
    path.unlink()


def steps_run_again(bench: Bench, before: int) -> dict[str, int]:
    again = bench.again(before)
    assert all(count == 1 for count in again.values()), again
    steps = [name.split("/")[0] for name in again]
    return {step: steps.count(step) for step in sorted(set(steps))}


def remove_ledger(bench: Bench) -> None:
    for path in bench.workspace.glob("ledger.sqlite*"):
        path.unlink()


@pytest.mark.parametrize("ledger", ["kept", "lost"])
@pytest.mark.parametrize("damage", [flip_a_byte, truncate, delete])
def test_an_artifact_in_the_middle(damage: Callable[[Path], None], ledger: str, job: Bench) -> None:
    """Nothing needs a damaged piece of a job that is done. A new ledger has it made again.

    Its weight and the join have sound receipts of their own, made from the same bytes: they stand.
    """
    piece = sorted(job.workspace.glob(PIECE))[COUNT // 2]
    damage(piece)
    damaged = piece.read_bytes() if piece.exists() else None
    if ledger == "lost":
        remove_ledger(job)
    before = len(job.executions())
    job.run(within_s=AT_ONCE_S)
    job.assert_right()
    assert steps_run_again(job, before) == ({} if ledger == "kept" else {"cut": 1})
    kept = [path.read_bytes() for path in job.workspace.glob("quarantine/**/piece.bin")]
    assert kept == ([] if damaged is None or ledger == "kept" else [damaged])


@pytest.mark.parametrize("output", ["kept", "lost"])
@pytest.mark.parametrize("damage", [flip_a_byte, truncate, delete])
def test_the_last_artifact(damage: Callable[[Path], None], output: str, job: Bench) -> None:
    """It is made again when the output is gone too, from the pieces that are there."""
    (artifact,) = job.workspace.glob("artifacts/join/*/*/joined.bin")
    damage(artifact)
    if output == "lost":
        delete(job.output)
    before = len(job.executions())
    job.run(within_s=AT_ONCE_S)
    job.assert_right()
    assert steps_run_again(job, before) == ({} if output == "kept" else {"join": 1})


@pytest.mark.parametrize("damage", [flip_a_byte, truncate, delete])
def test_the_output_itself(damage: Callable[[Path], None], job: Bench) -> None:
    """A copy for people is made again from its artifact, and nothing is executed for it."""
    damage(job.output)
    before = len(job.executions())
    job.run(within_s=AT_ONCE_S)
    job.assert_right()
    assert steps_run_again(job, before) == {}


@pytest.mark.parametrize("step", ["pieces", "cut", "weigh", "join"])
def test_a_garbage_receipt_without_a_ledger(step: str, job: Bench) -> None:
    """A receipt that is none is put aside, and its task alone runs again."""
    receipt = sorted(job.workspace.glob(f"receipts/{step}/*.json"))[0]
    receipt.write_bytes(b'{"task_key": "' + b"\xff" * 40)
    remove_ledger(job)
    before = len(job.executions())
    job.run(within_s=AT_ONCE_S)
    job.assert_right()
    assert steps_run_again(job, before) == {step: 1}
    assert list(job.workspace.glob(f"quarantine/*/receipts/{step}/{receipt.name}"))


def test_a_receipt_of_another_task(job: Bench) -> None:
    """A receipt under the wrong name is no receipt, however sound it is."""
    one, other, *_ = sorted(job.workspace.glob("receipts/weigh/*.json"))
    one.write_bytes(other.read_bytes())
    remove_ledger(job)
    before = len(job.executions())
    job.run(within_s=AT_ONCE_S)
    job.assert_right()
    assert job.again(before) == {f"weigh/{one.stem}": 1}


def test_a_piece_altered_while_the_job_runs(launcher: Launcher, tmp_path: Path) -> None:
    """Whoever reads the damaged input notices, and the job still ends well in the same run."""
    job = Bench(launcher, tmp_path / "job", {"slots": 2}, {"count": COUNT})
    job.hold(COUNT - 1)
    run = job.start()
    until(lambda: any(name.startswith("cut/") for name in job.receipts()), "a finished piece")
    (key, *_) = [name.removeprefix("cut/") for name in job.receipts() if name.startswith("cut/")]
    (piece,) = job.workspace.glob(f"artifacts/cut/{key}/*/piece.bin")
    flip_a_byte(piece)
    damaged = piece.read_bytes()
    job.let_go(COUNT - 1)
    assert run.wait() == 0, run.said()
    job.assert_right()
    kept = [path.read_bytes() for path in job.workspace.glob("quarantine/**/piece.bin")]
    assert damaged in kept
