"""Runs that are asked to stop, at random instants and with any budget: no attempt is counted.

Every step here has a single attempt. If a drain counted, or was taken for a crash, the job
would fail at once.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from bench import Bench
from launcher import LINGER_S, Launcher, kill

from intermission.backends.ledger.sqlite import SqliteLedger

LONGEST_S = 0.7
DRAINS = 12


def once(launcher: Launcher, folder: Path, drain_s: float) -> Bench:
    return Bench(
        launcher, folder, {"slots": 4, "drain_s": drain_s}, {"nap_ms": 20, "count": 50}, "once"
    )


def assert_nothing_counted(bench: Bench) -> None:
    """The next run would try a failed task again, so only the history tells."""
    ledger = SqliteLedger(bench.ledger)
    try:
        events = ledger.events(limit=100_000)
        attempts = {row.attempts for job in ledger.jobs() for row in ledger.tasks(job.job.key)}
    finally:
        ledger.close()
    assert attempts == {0}
    assert not [event for event in events if event.now in ("failed", "retrying")]


@pytest.mark.slow
@pytest.mark.parametrize("drain_s", [0.0, 0.05, 5.0])
def test_stopped_at_random_instants(drain_s: float, launcher: Launcher, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)
    left, jobs = DRAINS, 0
    while left:
        bench = once(launcher, tmp_path / str(jobs), drain_s)
        jobs += 1
        status = 75
        while status:
            receipts, before = bench.receipts(), len(bench.executions())
            run = bench.start()
            if left and not run.ended_within(rng.uniform(0, LONGEST_S)):
                left -= kill(run.pid, rng.choice((signal.SIGTERM, signal.SIGINT)))
            status = run.wait()
            # Before its handlers are set, a signal ends the process as it ends any other.
            assert status in (0, 75, 130, -signal.SIGTERM), (status, run.said())
            launcher.assert_nobody_left(0.0 if status in (0, 75) else LINGER_S)
            assert not receipts & set(bench.again(before))
        bench.assert_right()
        assert_nothing_counted(bench)


def test_the_second_signal_does_not_wait(launcher: Launcher, tmp_path: Path) -> None:
    bench = once(launcher, tmp_path, drain_s=1000.0)
    bench.hold(0)
    run = bench.start()
    bench.wait_for_executions(2)
    kill(run.pid, signal.SIGINT)
    assert not run.ended_within(0.5), "it finishes what it is doing"
    kill(run.pid, signal.SIGINT)
    assert run.wait(10.0) == 75
    launcher.assert_nobody_left(0.0)
    bench.let_go(0)
    bench.run()
    bench.assert_right()
    assert_nothing_counted(bench)
