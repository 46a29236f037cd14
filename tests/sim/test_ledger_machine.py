"""A hundred thousand stateful steps on each ledger, with no rule broken."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from intermission.backends.ledger.memory import MemoryLedger
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.testing.machine import LedgerMachine

STEPS = 100_000
SHARDS = 2
ROUNDS_MAX = 10
RUNS = settings(
    max_examples=200,
    stateful_step_count=100,
    deadline=None,
    database=None,
    print_blob=True,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class MemoryMachine(LedgerMachine):
    def open_ledger(self) -> MemoryLedger:
        return MemoryLedger(clock=self.clock)


class SqliteMachine(LedgerMachine):
    def open_ledger(self) -> SqliteLedger:
        # In memory where there is such a file system: what is tested is logic, not the disk.
        shared = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
        return SqliteLedger(self.folder / "ledger.sqlite", clock=self.clock)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            shutil.rmtree(self.folder)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("machine", [MemoryMachine, SqliteMachine])
def test_no_rule_is_broken(machine: type[LedgerMachine], shard: int) -> None:
    number = int(os.environ.get("INTERMISSION_SEED", "1")) + shard
    machine.steps_run = 0
    for n in range(ROUNDS_MAX):
        round_seed = number + n * SHARDS
        try:
            run_state_machine_as_test(seed(round_seed)(machine), settings=RUNS)
        except BaseException as e:
            e.add_note(f"Run it again with INTERMISSION_SEED={round_seed - shard}")
            raise
        if machine.steps_run >= STEPS // SHARDS:
            return
    pytest.fail(f"only {machine.steps_run} steps in {ROUNDS_MAX} rounds")
