"""A kill at every fault point the engine knows, and then the same command.

A supervisor's point ends the run; a slot's point is a failed attempt, and because every new
slot meets it again, the task may fail for good. Either way the next run, without the fault,
makes the right bytes and executes nothing that had a receipt.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from bench import Bench, Run
from launcher import Launcher, kill, until

from intermission.telemetry import OWNERSHIP_POINTS, POINTS
from intermission.testing.faults import crash_at

AT_ONCE_S = 20.0
SLOT_POINTS = (
    "before-step",
    "after-step",
    "after-artifacts",
    "before-receipt",
    "after-receipt",
    "before-publish",
    "after-publish",
)
SUPERVISOR_POINTS = (
    "after-submit",
    "after-claim",
    "before-complete",
    "after-complete",
    "before-expand",
)
OTHER_POINTS = ("before-renew", "before-release", "mid-quarantine")
ONCE = ("before-publish", "after-publish", "after-submit", "before-expand")
"""A job with one plan and one output passes these once."""


def passes(points: tuple[str, ...], often: int) -> list[tuple[str, int]]:
    """Each point with every count at which to kill."""
    return [(point, nth) for point in points for nth in range(1, 2 if point in ONCE else often + 1)]


def thrice(launcher: Launcher, folder: Path) -> Bench:
    return Bench(launcher, folder, settings={"slots": 2}, pipeline="thrice")


def assert_resumes(bench: Bench) -> None:
    bench.launcher.assert_nobody_left()
    had, before = bench.receipts(), len(bench.executions())
    bench.run(within_s=AT_ONCE_S)
    bench.assert_right()
    assert not had & set(bench.again(before)), "executed although it had a receipt"


def test_every_point_has_a_test() -> None:
    # Those of owning a bucket are in test_ownership_kills.
    assert set(POINTS) - set(OWNERSHIP_POINTS) == {
        *SLOT_POINTS,
        *SUPERVISOR_POINTS,
        *OTHER_POINTS,
    }


@pytest.mark.parametrize(("point", "nth"), passes(SLOT_POINTS, 2))
def test_a_slot_is_killed(point: str, nth: int, launcher: Launcher, tmp_path: Path) -> None:
    bench = thrice(launcher, tmp_path)
    status, run = bench.run_cold(crash_at(point, nth))
    assert status in (0, 1), run.said()
    assert "was killed by SIGKILL" in run.last("closed")["last_failure"]
    assert_resumes(bench)


@pytest.mark.parametrize(("point", "nth"), passes(SUPERVISOR_POINTS, 3))
def test_the_supervisor_is_killed(point: str, nth: int, launcher: Launcher, tmp_path: Path) -> None:
    bench = thrice(launcher, tmp_path)
    status, run = bench.run_cold(crash_at(point, nth))
    assert status == -9, run.said()
    assert_resumes(bench)


@pytest.mark.parametrize("nth", [1, 2])
def test_the_keeper_is_killed_before_it_renews(
    nth: int, launcher: Launcher, tmp_path: Path
) -> None:
    bench = thrice(launcher, tmp_path)
    bench.hold(0)
    bench.settings |= {"renew_every_s": 0.05}
    status, run = bench.run_cold(crash_at("before-renew", nth))
    assert status == -9, run.said()
    bench.let_go(0)
    assert_resumes(bench)


@pytest.mark.parametrize("nth", [1, 2])
def test_a_draining_worker_is_killed_before_it_gives_back(
    nth: int, launcher: Launcher, tmp_path: Path
) -> None:
    bench = thrice(launcher, tmp_path)
    bench.hold(0, 1)
    bench.settings |= {"drain_s": 0}
    order = bench.order(env=crash_at("before-release", nth))
    process = launcher.start_cold(order)
    bench.wait_for_executions(3)
    kill(process.pid, signal.SIGTERM)
    assert process.wait(AT_ONCE_S) == -9
    bench.let_go(0, 1)
    assert_resumes(bench)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_killed_while_damaged_files_are_put_aside(
    nth: int, launcher: Launcher, tmp_path: Path
) -> None:
    """The output is gone and so is what it was published from: the join must run again, and
    with it the one damaged task that it needs, once.
    """
    bench = thrice(launcher, tmp_path)
    bench.run()
    (damaged, *_) = sorted(bench.workspace.glob("artifacts/part/*/*/piece.bin"))
    damaged.write_bytes(b"not what it was")
    (joined,) = bench.workspace.glob("artifacts/whole/*/*/joined.bin")
    joined.unlink()
    bench.output.unlink()
    before = len(bench.executions())
    status, run = bench.run_cold(crash_at("mid-quarantine", nth))
    assert status == -9, run.said()
    assert_damage_is_repaired(bench, damaged, before)


@pytest.mark.parametrize("nth", [1, 2])
def test_a_slot_killed_while_it_puts_damaged_files_aside(
    nth: int, launcher: Launcher, tmp_path: Path
) -> None:
    """Without a ledger nobody knows of the damage before a slot wants to adopt the receipt."""
    bench = thrice(launcher, tmp_path)
    bench.run()
    bench.ledger.unlink()
    (damaged, *_) = sorted(bench.workspace.glob("artifacts/part/*/*/piece.bin"))
    damaged.write_bytes(b"not what it was")
    before = len(bench.executions())
    status, run = bench.run_cold(crash_at("mid-quarantine", nth))
    assert status in (0, 1), run.said()
    assert "was killed by SIGKILL" in run.last("closed")["last_failure"]
    assert_damage_is_repaired(bench, damaged, before)


def assert_damage_is_repaired(bench: Bench, damaged: Path, before: int) -> None:
    bench.launcher.assert_nobody_left()
    bench.run(within_s=AT_ONCE_S)
    assert bench.output.read_bytes() == bench.expected
    again = bench.again(before)
    key = damaged.parent.parent.name
    assert again[f"part/{key}"] == 1
    assert {name.split("/")[0] for name in again} <= {"part", "whole"}
    assert sum(name.startswith("part/") for name in again) == 1
    kept = [path.read_bytes() for path in bench.workspace.glob("quarantine/**/piece.bin")]
    assert b"not what it was" in kept


def test_the_run_that_heals_says_so(launcher: Launcher, tmp_path: Path) -> None:
    """A job that failed under a fault is done after it, and nothing is left to do."""
    bench = thrice(launcher, tmp_path)
    bench.run_cold(crash_at("before-step"))
    healed: Run = bench.run(within_s=AT_ONCE_S)
    assert healed.last("closed")["state"] == "done"
    idle = bench.run(within_s=AT_ONCE_S)
    assert idle.last("closed")["executed"] == 0
    until(lambda: not launcher.marked(), "everyone to leave")
