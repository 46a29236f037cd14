"""What people are told about a task that hosts could not run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from intermission.composition.app import App
from intermission.model import Reason
from intermission.operations.inspect import refusal
from intermission.operations.job_handle import LedgerJob, refused_tasks
from intermission.operations.job_lookup import Found
from intermission.settings import Settings
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import job, step, submit
from intermission.testing.scratch_ledger import scratch_ledger


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        (1, "waits for another worker, because a host can't run it: no GPU here."),
        (2, "waits for another worker, because 2 hosts can't run it: no GPU here."),
        (3, "no worker can run it, say 3 hosts: no GPU here."),
    ],
)
def test_a_task_that_hosts_gave_back_says_why_it_waits(
    hosts: int, said: str, tmp_path: Path
) -> None:
    ledger = scratch_ledger(FakeClock())
    submitted = submit(ledger, job(step("one"), step("two")))
    for n in range(hosts):
        taken, other = ledger.claim("w", 2, lease_ttl_s=60, host=f"host{n}")
        ledger.release([(other.task_id, other.fence)], reason=Reason.DRAINED)
        ledger.release(
            [(taken.task_id, taken.fence)],
            reason=Reason.NO_DEVICE,
            message="no GPU here.",
            host=f"host{n}",
            until_s=60.0,
        )
    (row,) = ledger.jobs(submitted.key)
    app = App(Settings(ledger=str(tmp_path / "ledger.sqlite")), FakeClock())
    workspace = cast(Any, SimpleNamespace(is_remote=False))
    found = Found(Path("/a.mp4"), workspace, ledger, row, app)
    held = LedgerJob(found)
    (refused,) = refused_tasks(held)
    assert held.why(refused.key).why == said
    assert refusal(refused.refusals, refused.message) == said
