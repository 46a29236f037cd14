"""A hundred thousand stateful steps on each ledger, with no rule broken.

A step is one operation on the ledger, with all that must hold looked at after it. On PostgreSQL
one costs many times as much, so a test run takes fewer there; `INTERMISSION_TEST_STEPS=100000`
asks for all.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from intermission.backends.ledger.postgres import PostgresLedger
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.testing.machine import LedgerMachine
from intermission.testing.scratch_ledger import scratch_ledger
from servers.postgres import Databases

STEPS = 100_000
POSTGRES_STEPS = int(os.environ.get("INTERMISSION_TEST_STEPS", "600"))
SHARDS = 2
STEP_COUNT = 100
ROUNDS_MAX = 10
RUNS = settings(
    stateful_step_count=STEP_COUNT,
    deadline=None,
    database=None,
    print_blob=True,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class SqliteMachine(LedgerMachine):
    def open_ledger(self) -> SqliteLedger:
        return scratch_ledger(self.clock)


class PostgresMachine(LedgerMachine):
    databases: Databases

    def open_ledger(self) -> PostgresLedger:
        # One database for all runs: to empty it is much sooner done than to make another.
        return PostgresLedger(self.databases.emptied(), clock=self.clock)


def play(machine: type[LedgerMachine], steps: int, shard: int = 0) -> None:
    """Run a machine from one seed after another until it has taken so many steps."""
    number = int(os.environ.get("INTERMISSION_SEED", "1")) + shard
    machine.steps_run = 0
    for n in range(ROUNDS_MAX):
        round_seed = number + n * SHARDS
        left = -(-(steps - machine.steps_run) // (2 * STEP_COUNT))  # most rules are two steps
        runs = settings(RUNS, max_examples=min(200, max(20, left)))
        try:
            run_state_machine_as_test(seed(round_seed)(machine), settings=runs)
        except BaseException as e:
            e.add_note(f"Run it again with INTERMISSION_SEED={round_seed - shard}")
            raise
        if machine.steps_run >= steps:
            return
    pytest.fail(f"only {machine.steps_run} steps in {ROUNDS_MAX} rounds")


@pytest.mark.slow
@pytest.mark.timeout(900)  # a failure takes long to be made small
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_rule_is_broken(shard: int) -> None:
    play(SqliteMachine, STEPS // SHARDS, shard)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nor_on_postgresql(postgres: Databases) -> None:
    PostgresMachine.databases = postgres
    play(PostgresMachine, POSTGRES_STEPS)
