"""A run over a workspace in a bucket, in one process, that can be killed between any two acts.

The bucket is a folder, so that it outlives its killed users. Renewals and uploads are made
between tasks instead of beside them: then a fault point is always passed at the same place.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from intermission.backends.ledger.object_ledger import Ownership
from intermission.backends.ledger.object_ledger.replica import LEDGER_NAME
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.store.local import LocalStore
from intermission.backends.task_io.store_io import StoreIO
from intermission.engine import completion
from intermission.engine.inputs import inputs_of
from intermission.engine.planning import expand
from intermission.engine.run_task import Hooks, Work, run_task
from intermission.engine.workspace import Workspace
from intermission.errors import IntermissionError
from intermission.maintenance.rebuild import remember_job
from intermission.model import Lease
from intermission.ports.ledger import Ledger
from intermission.ports.slot_protocol import Failed
from intermission.ports.store import Stat, Store
from intermission.telemetry import listen
from intermission.testing.simulator.sample_pipeline import TALK, talk_job

TTL_S = 60.0
LATER_MS = 3_600_000
"""How far ahead the clock of a `later` bucket is: every lock in it is stale."""


class Bucket(LocalStore):
    """A folder that keeps every ledger ever uploaded, and whose clock can be ahead."""

    def __init__(self, folder: Path, *, later: bool = False) -> None:
        super().__init__(folder / "bucket")
        self.versions = folder / "versions"
        self.later = later

    def create(self, key: str, data: bytes | Path) -> Stat:
        return self._kept(key, super().create(key, data))

    def replace(self, key: str, data: bytes | Path, *, if_version: str | None = None) -> Stat:
        return self._kept(key, super().replace(key, data, if_version=if_version))

    def stat(self, key: str) -> Stat | None:
        found = super().stat(key)
        if found is None or not self.later or not key.startswith("clock/"):
            return found
        return Stat(key, found.size_bytes, found.version, found.modified_ms + LATER_MS)

    def _kept(self, key: str, stat: Stat) -> Stat:
        if key == LEDGER_NAME:
            self.versions.mkdir(exist_ok=True)
            (self.versions / os.urandom(8).hex()).write_bytes(self.read(key))
        return stat


def workspace(folder: Path, machine: str, *, later: bool = False) -> Workspace:
    cache = folder / machine
    return Workspace(
        folder=cache,
        open_store=partial(Bucket, folder, later=later),
        open_outputs=None,
        open_ledger=partial(SqliteLedger, cache / LEDGER_NAME),
    )


def own(folder: Path, machine: str, *, later: bool = False) -> Ownership:
    def lost(error: Exception) -> None:
        raise error

    place = workspace(folder, machine, later=later)
    return Ownership(place, machine, on_lost=lost, renew_every_s=0.0, push_every_s=0.0)


def run(folder: Path, machine: str, *, later: bool = False) -> None:
    """The same command as ever: whatever is not finished is done."""
    owned = own(folder, machine, later=later)
    owned.open()
    place = workspace(folder, machine, later=later)
    store, ledger = place.open_store(), place.open_ledger()
    job = talk_job()
    remember_job(store, job)
    ledger.submit(job, expand(job, {}))
    # Whoever held a task here owned the workspace then, and does not now.
    ledger.rescue({row.worker for row in ledger.tasks(job.key) if row.worker is not None})
    work = Work(job, TALK, StoreIO(job, store, None, place.folder / "scratch"), machine)
    while leases := ledger.claim(owned.lock.owner, 1, lease_ttl_s=TTL_S):
        _finish(folder, ledger, store, work, leases[0])
        owned.push_if_due()
        owned.renew_if_due()
    ledger.close()
    owned.close("done")


def _finish(folder: Path, ledger: Ledger, store: Store, work: Work, lease: Lease) -> None:
    def executed(_: float) -> None:
        with (folder / "journal").open("a") as file:
            file.write(f"{lease.step}/{lease.key}\n")

    try:
        hooks = Hooks(logging.getLogger("intermission.owning"), executed, lambda: False)
        finished = run_task(work, lease, inputs_of(ledger, work.job, lease), hooks)
    except IntermissionError as e:
        failed = Failed(lease.task_id, type(e).__name__, str(e), not e.retryable)
        ledger.fail([completion.failure(work.job, lease, failed, (0.0,))])
        return
    completion.complete(ledger, store, work.job, [(lease, finished)], folder / "scratch")


def forked(act: Callable[[], None]) -> int:
    """Start a process that does one thing and ends; its id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return pid


def ended(pid: int) -> int:
    """How a forked process ended, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at(point: str, nth: int, act: Callable[[], None]) -> int:
    """Do it in a process that is killed when it passes a fault point for the nth time."""
    passed = 0

    def kill(passing: str) -> None:
        nonlocal passed
        passed += passing == point
        if passing == point and passed == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def act_and_die() -> None:
        with listen(kill):
            act()

    return ended(forked(act_and_die))
