"""Simulated workers: the product's `Worker`, of a fleet or of one command.

Everything in it is what production runs: loop, lease renewer, local executor, slots, work sources.
Only what is below is simulated: clock, reaper, store, and the way to the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, cast

from intermission.backends.executor.local import LocalExecutor
from intermission.backends.work_source.open_job import OpenJob, job_row
from intermission.backends.work_source.own_jobs import OwnJobs
from intermission.backends.work_source.shared_jobs import SharedJobs
from intermission.engine.lease_renewer import TICK_S, LeaseRenewer
from intermission.engine.publish import publish
from intermission.engine.worker import Worker
from intermission.engine.workspace import Workspace
from intermission.errors import IntermissionError, NoPipeline
from intermission.model import Job, JobState
from intermission.polling import readable
from intermission.ports.ledger import Ledger, every_receipt
from intermission.ports.work_source import WorkSource
from intermission.settings import Settings
from intermission.testing.simulator.host import Host
from intermission.testing.simulator.process import Process, open_outputs, open_store
from intermission.testing.simulator.slots import Reaper, SimulatedSlot
from intermission.testing.simulator.submission import submit
from intermission.testing.simulator.world import World

LEASE_TTL_S = 8.0
RENEW_EVERY_S = 2.0
DRAIN_S = 3.0
RETRY_DELAYS_S = (0.5, 2.0)
_NO_SIGNALS = -1


@cache
def _settings() -> Settings:
    return Settings(lease_ttl_s=LEASE_TTL_S, renew_every_s=RENEW_EVERY_S)


class SimulatedWorker(Process):
    """A worker's process, with a thread for the loop and one for the renewer."""

    is_shared: bool

    def __init__(self, world: World, name: str, host: Host) -> None:
        super().__init__(world, name, host)
        self.codes = host.codes
        """What was installed when it started: it does not look again."""
        self.draining = False
        self.reaper = Reaper(self)
        self.children: list[SimulatedSlot] = []
        """Slots that started since the simulation last looked."""
        self.workspace = Workspace(host.folder, open_store, open_outputs, self._open_renewals)
        self._renewals = self.wire("renewals", self.ledger_call(f"{name}+"))
        self._executor = LocalExecutor(cast(Any, self.reaper), world.random.randint(1, 3))
        self._source = self.source()
        lease_ttl_s = getattr(self._source, "lease_ttl_s", LEASE_TTL_S)
        self.renewer = LeaseRenewer(
            name, host.clock, lease_ttl_s=lease_ttl_s, renew_every_s=RENEW_EVERY_S
        )
        self.worker = Worker(
            self._source,
            self.renewer,
            self._executor,
            host.clock,
            drain_s=DRAIN_S,
            wait=self._wait,
        )
        self.beside(self._renew)

    def source(self) -> WorkSource:
        raise NotImplementedError

    def body(self) -> None:
        try:
            self.worker.work(_NO_SIGNALS)
        finally:
            self._executor.close()
            self._source.close()

    def _renew(self) -> None:
        while True:
            self.sleep(TICK_S)
            self.renewer.tick()

    def _open_renewals(self) -> Ledger:
        return self._renewals

    def _wait(self, readers: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        if not readable([self._executor], 0):
            self.sleep(timeout_s)
        return readable([self._executor], 0)

    def drain(self) -> None:
        self.draining = True
        self.worker.drain("SIGTERM")
        self.wake()

    def started(self, slot: SimulatedSlot) -> None:
        self.children.append(slot)

    @property
    def is_busy(self) -> bool:
        return bool(self.renewer.jobs())

    def kill(self) -> None:
        """Its slots live on, for a second at most."""
        is_news = not self.ended
        super().kill()
        if is_news:
            for slot in self.reaper.slots.values():
                slot.dies_in(self.world.random.choice([0.0, 0.2, 1.0]))

    def leave(self) -> None:
        super().leave()
        self.reaper.release()

    def open(self, job: Job) -> OpenJob:
        if job.code not in self.codes:
            raise NoPipeline(f"{self.host.name} has no {job.code}.")
        return OpenJob(
            self.workspace,
            job,
            self.ledger,
            self.store,
            self.name,
            _settings(),
            delays_s=RETRY_DELAYS_S,
            jitter=0.2,
            ref=job.pipeline,
        )


class FleetWorker(SimulatedWorker):
    """Takes tasks of every job in a shared ledger, until it is asked to stop."""

    is_shared = True

    def source(self) -> WorkSource:
        return SharedJobs(
            self.ledger,
            self._open_job,
            self.name,
            _settings(),
            self.host.clock,
            runs=self.codes,
            host=self.host.name,
        )

    def _open_job(self, key: str) -> OpenJob:
        return self.open(job_row(self.ledger, key).job)


class Command(SimulatedWorker):
    """A `run` of all jobs, which ends with them; or with the first fault, progress saved."""

    is_shared = False

    def __init__(self, world: World, name: str, host: Host, *, thorough: bool = False) -> None:
        self._thorough = thorough
        super().__init__(world, name, host)

    def source(self) -> WorkSource:
        return OwnJobs(self._jobs(), self.name, _settings(), self.host.clock, self._end)

    def _jobs(self) -> Iterator[OpenJob]:
        for job in self.world.jobs:
            submit(self, job, thorough=self._thorough)
            yield self.open(job)

    def _end(self, opened: OpenJob) -> None:
        if [row.state for row in self.ledger.jobs(opened.job.key)] != [JobState.DONE]:
            return
        for task, output in every_receipt(self.ledger, opened.job.key):
            spec = opened.job.step(task.step)
            if spec.publish is not None:
                where = opened.job, spec, task.index, output.files, self.host.folder / "scratch"
                publish(self.store, self.outputs, *where)

    def body(self) -> None:
        try:
            super().body()
        except IntermissionError as e:
            self.world.note(f"{self.name} stops: {e}")
