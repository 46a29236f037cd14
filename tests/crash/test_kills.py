"""600 SIGKILLs at random instants over jobs of 60 tasks on 4 slots.

The supervisor, its slots and its reaper are killed in turn, the same command is given again
until the job is done, and every promise is looked at after every kill: nothing that had a
receipt is executed again, nothing outlives its worker, and the output is what an undisturbed
run makes, byte for byte.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from bench import Bench, Run
from launcher import Launcher, kill

KILLS = 600
GROUPS = 12
ON_DISK = (0, 1)
"""These groups work on a disk: the others would wait for it, and a kill leaves the same there."""
SLOTS = 4
TARGETS = ("supervisor", "slot", "reaper")
NAP_MS = 6
"""Of a `weigh`; a `cut` naps one to four times as long."""
LONGEST_S = 0.5
"""Kills fall anywhere in this time, which is most of an undisturbed job's."""


class Job:
    """One job that is killed again and again, and the promises it must keep meanwhile."""

    def __init__(self, bench: Bench, rng: random.Random) -> None:
        self.bench = bench
        self.rng = rng
        self.in_flight = 0
        self.kills = 0
        self.done = False

    def run(self, kills: int) -> int:
        """One run, killed at most so many times before it ends. How often it was."""
        receipts, before = self.bench.receipts(), len(self.bench.executions())
        run = self.bench.start()
        fell = 0
        while fell < kills and not run.ended_within(self.rng.uniform(0, LONGEST_S)):
            target = self.rng.choices(TARGETS, (6, 3, 1))[0]
            if not self._kill(run, target):
                continue
            fell += 1
            if target != "slot":
                break
        status = run.wait()
        self.bench.launcher.assert_nobody_left()
        assert status in (0, 4, -9), (status, run.said())
        assert not any("traceback" in line for line in run.said()), run.said()
        again = set(self.bench.executions()[before:]) & receipts
        assert not again, f"executed although they had a receipt: {again}"
        self.kills += fell
        self.done = status == 0
        return fell

    def _kill(self, run: Run, target: str) -> bool:
        """Whether there was anybody to kill. What was in flight may be lost now."""
        if target == "supervisor":
            found = [run.pid]
        else:
            found = run.slots() if target == "slot" else run.reapers()
        if not found or not kill(self.rng.choice(found)):
            return False
        self.in_flight += 1 if target == "slot" else SLOTS
        return True

    def check(self) -> None:
        bench = self.bench
        bench.assert_right()
        assert len(bench.receipts()) == bench.tasks() == 60
        executions = bench.executions()
        assert set(executions) == bench.receipts()
        assert len(executions) <= bench.tasks() + self.in_flight


def seeded() -> random.Random:
    """Another seed every time; pytest shows it when the test fails."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    return random.Random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_kills_at_random_instants(
    group: int, tmp_path: Path, memory_path: Path, launcher: Launcher
) -> None:
    rng = seeded()
    folder = tmp_path if group in ON_DISK else memory_path
    left = KILLS // GROUPS
    jobs = 0
    while left:
        bench = Bench(
            launcher,
            folder / f"job-{jobs}",
            settings={"slots": SLOTS},
            params={"nap_ms": NAP_MS, "litter": True},
        )
        job = Job(bench, rng)
        jobs += 1
        while not job.done:
            left -= job.run(left)
        job.check()
        bench.discard()
    assert left == 0


@pytest.mark.slow
def test_two_workers_on_one_job(launcher: Launcher, tmp_path: Path) -> None:
    """Two runs of the same command share the work; each is killed and started again."""
    rng = seeded()
    bench = Bench(launcher, tmp_path, {"slots": 2}, {"nap_ms": NAP_MS, "litter": True})
    in_flight, statuses = 0, [1]
    while 0 not in statuses:
        runs = [bench.start(), bench.start()]
        rng.shuffle(runs)
        for run in runs:
            if in_flight < 40 and not run.ended_within(rng.uniform(0, LONGEST_S)):
                in_flight += 2 * kill(run.pid)
        statuses = [run.wait() for run in runs]
        launcher.assert_nobody_left()
        assert set(statuses) <= {0, -9}, [run.said() for run in runs]
    bench.assert_right()
    assert len(bench.receipts()) == 60
    assert len(bench.executions()) <= 60 + in_flight


def test_kills_while_the_same_chunk_is_under_way_cost_no_attempt(
    launcher: Launcher, memory_path: Path
) -> None:
    """A step of three attempts: four interruptions are nothing that it did."""
    bench = Bench(launcher, memory_path, {"slots": 1, "lost_max": 10}, {"count": 1}, "thrice")
    bench.hold(0)
    for n in range(4):
        run = bench.start()
        bench.wait_for_executions(2 + n)  # the plan once, the part each time
        run.kill()
        assert run.wait() == -9
        launcher.assert_nobody_left()
    bench.let_go(0)
    bench.run()
    bench.assert_right()
