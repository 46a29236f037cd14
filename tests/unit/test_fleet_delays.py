"""How long a failed task waits on a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from intermission.composition.fleet import Fleet
from intermission.ports.slot_protocol import Failed
from intermission.settings import Settings

CODE = """
from intermission import Pipeline, step

@step(version=1, attempts=2)
def fail() -> int: ...

failing = Pipeline("failing", [fail])
"""


@pytest.mark.parametrize(
    ("own", "delays_s"),
    [({}, (60.0, 300.0, 900.0)), ({"retry_delays_s": (20.0, 40.0)}, (20.0, 40.0))],
)
def test_a_failed_task_waits_about_as_long_as_a_fleet_waits(
    own: dict[str, Any], delays_s: tuple[float, ...], tmp_path: Path
) -> None:
    source, code = tmp_path / "source.txt", tmp_path / "failing.py"
    source.write_text("text")
    code.write_text(CODE)
    fleet = Fleet(Settings(ledger=str(tmp_path / "ledger.sqlite"), **own))
    key, _ = fleet.submit(fleet.app.catalog.add(f"{code}:failing"), str(source), {})
    opened = fleet.open_job(fleet.ledger, key, "w")
    assert (opened.delays_s, opened.jitter) == (delays_s, 0.2)
    (lease,) = fleet.ledger.claim("w", 1, lease_ttl_s=60)
    before_ms = fleet.app.clock.now_ms()
    opened.fail(lease, Failed(lease.task_id, "ValueError", "no", False))
    (row,) = fleet.ledger.tasks(key)
    assert row.ready_ms is not None
    after_ms = fleet.app.clock.now_ms()
    least_ms, most_ms = (1000 * delays_s[0] * share for share in (0.8, 1.2))
    assert before_ms + least_ms - 5 <= row.ready_ms <= after_ms + most_ms + 5
