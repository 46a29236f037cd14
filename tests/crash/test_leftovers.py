"""Nothing outlives its worker by more than a second, whoever is killed and however it hides."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from bench import Bench, Run
from launcher import LINGER_S, Launcher, children, describe, kill, until
from work import SLEEPERS

VICTIMS = (
    ("supervisor",),
    ("supervisor", "reaper"),
    ("supervisor", "second reaper"),
)


def messy(launcher: Launcher, folder: Path, **params: bool) -> Bench:
    return Bench(launcher, folder, {"slots": 1, "drain_s": 0}, dict(params), "littering")


def sleepers(launcher: Launcher) -> list[int]:
    return [pid for pid in launcher.marked() if describe(pid).endswith(": sleep 1000 ")]


def started(bench: Bench) -> Run:
    """A run whose one task has made all of its mess."""
    run = bench.start()
    until(lambda: len(sleepers(bench.launcher)) == SLEEPERS, "the mess to be complete")
    return run


@pytest.mark.parametrize("victims", VICTIMS, ids=" and ".join)
def test_killed_processes_take_everything_with_them(
    victims: tuple[str, ...], launcher: Launcher, tmp_path: Path
) -> None:
    run = started(messy(launcher, tmp_path))
    second, first = run.reapers()
    pids = {"supervisor": run.pid, "second reaper": second, "reaper": first}
    hit, *_ = [kill(pids[victim]) for victim in victims]  # a second may be gone with the first
    assert hit
    launcher.assert_nobody_left()


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("victim", ["second reaper", "reaper"])
def test_a_killed_reaper_takes_everything_with_it_and_another_one_goes_on(
    victim: str, times: int, launcher: Launcher, tmp_path: Path
) -> None:
    bench = messy(launcher, tmp_path)
    run = started(bench)
    second, first = run.reapers()
    for time in range(times):
        left = sleepers(launcher)
        kill(second if victim == "second reaper" else first)
        until(lambda left=left: not set(left) & set(sleepers(launcher)), "its end", LINGER_S)
        until(lambda: len(sleepers(launcher)) == SLEEPERS, "the task to run again")
        assert len(bench.executions()) == time + 2
        # The first takes the place of a second that was killed, and forks another first.
        second = first if victim == "second reaper" else second
        (first,) = children(second)
    kill(run.pid)
    launcher.assert_nobody_left()


def test_a_dead_slot_takes_everything_with_it(launcher: Launcher, tmp_path: Path) -> None:
    run = started(messy(launcher, tmp_path))
    left = sleepers(launcher)
    (slot,) = run.slots()
    kill(slot)
    until(lambda: not set(left) & set(sleepers(launcher)), "its children to end", LINGER_S)
    kill(run.pid)
    launcher.assert_nobody_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_leaves_nobody(number: signal.Signals, launcher: Launcher, tmp_path: Path) -> None:
    run = started(messy(launcher, tmp_path))
    kill(run.pid, number)
    assert run.wait() == 75
    launcher.assert_nobody_left(0.0)


def test_a_finished_job_leaves_nobody(launcher: Launcher, tmp_path: Path) -> None:
    messy(launcher, tmp_path, stays=False).run()
    launcher.assert_nobody_left(0.0)
