"""Three minutes of faults on a whole fleet, after which nothing may be wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import randrange

import pytest

from chaos.run import run
from servers.postgres import PostgresServer


@pytest.mark.slow
@pytest.mark.timeout(2400)  # three minutes, and what a busy machine needs to finish the work
@pytest.mark.usefixtures("postgres_server")  # which knows whether there is one to start
def test_a_fleet_survives_three_minutes_of_faults(
    tmp_path: Path, postgres_server: Callable[..., PostgresServer]
) -> None:
    seed = int(os.environ.get("CHAOS_SEED", randrange(10_000)))
    outcome = run(seed, 3.0, tmp_path / "chaos.log")
    assert outcome.is_sound, outcome.told()
