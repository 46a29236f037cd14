"""600 SIGKILLs at random instants over jobs of 60 tasks on 4 slots.

The supervisor, its slots and its guardian are killed in turn, the same command is given again
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
SLOTS = 4
NAP_MS = 6
"""Of a `weigh`; a `cut` naps one to four times as long."""
LONGEST_S = 0.7
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
            target = self.rng.choices(("supervisor", "slot", "guardian"), (6, 3, 1))[0]
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
        if target == "supervisor":
            self.in_flight += SLOTS
            return kill(run.pid)
        self.in_flight += 1 if target == "slot" else SLOTS
        found = run.slots() if target == "slot" else run.guardians()
        return bool(found) and kill(self.rng.choice(found))

    def check(self) -> None:
        bench = self.bench
        bench.assert_right()
        assert len(bench.receipts()) == bench.tasks() == 60
        executions = bench.executions()
        assert set(executions) == bench.receipts()
        assert len(executions) <= bench.tasks() + self.in_flight


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_kills_at_random_instants(group: int, launcher: Launcher, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)
    left = KILLS // GROUPS
    jobs = 0
    while left:
        bench = Bench(
            launcher,
            tmp_path / f"job-{jobs}",
            settings={"slots": SLOTS},
            params={"nap_ms": NAP_MS, "litter": True},
        )
        job = Job(bench, rng)
        jobs += 1
        while not job.done:
            left -= job.run(left)
        job.check()
    assert left == 0
