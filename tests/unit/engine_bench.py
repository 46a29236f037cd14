"""The engine on a bench: ledger and store in memory, a clock to turn by hand, one pair of hands."""

from __future__ import annotations

import logging
from pathlib import Path

from intermission.backends.store.memory import MemoryStore
from intermission.backends.task_io.store_io import StoreIO
from intermission.engine import completion
from intermission.engine.inputs import inputs_of
from intermission.engine.planning import expand
from intermission.engine.receipt import receipt_key
from intermission.engine.run_task import Hooks, Work, run_task
from intermission.errors import IntermissionError
from intermission.maintenance.rebuild import remember_job
from intermission.model import Completion, Job, Lease, Receipt, TaskRow, TaskState
from intermission.pipeline import Pipeline
from intermission.ports.ledger import output_of
from intermission.ports.slot_protocol import Failed
from intermission.testing.clock import FakeClock
from intermission.testing.scratch_ledger import scratch_ledger
from intermission.testing.simulator.sample_pipeline import TALK, talk_job

TTL_S = 60.0
_LOG = logging.getLogger("intermission.bench")


class Bench:
    """One job of the simulator's pipeline, unless another is given."""

    def __init__(self, scratch: Path, pipeline: Pipeline = TALK, job: Job | None = None) -> None:
        self.clock = FakeClock()
        self.ledger = scratch_ledger(self.clock)
        self.store = MemoryStore(self.clock)
        self.outputs = MemoryStore(self.clock)
        self.scratch = scratch
        self.job = job or talk_job()
        self.work = self.work_on(self.job, pipeline)
        self.ran: list[str] = []
        """The tasks whose steps were called, in order."""

    def work_on(self, job: Job, pipeline: Pipeline) -> Work:
        io = StoreIO(job, self.store, lambda: self.outputs, self.scratch)
        return Work(job, pipeline, io, "w")

    def submit(self) -> None:
        remember_job(self.store, self.job)
        self.ledger.submit(self.job, expand(self.job, {}))

    def take(self, capacity: int = 1, *, worker: str = "w") -> list[Lease]:
        return self.ledger.claim(worker, capacity, lease_ttl_s=TTL_S)

    def take_until(self, step: str) -> Lease:
        """The first lease of a step, after everything before it is done."""
        while True:
            (lease,) = self.take()
            if lease.step == step:
                return lease
            self.finish(lease)

    def run(self, lease: Lease) -> Completion:
        name = lease.step if lease.chunk is None else f"{lease.step}[{lease.index}]"
        hooks = Hooks(_LOG, lambda _: self.ran.append(name), lambda: False)
        return run_task(self.work, lease, inputs_of(self.ledger, self.job, lease), hooks)

    def finish(self, lease: Lease) -> bool:
        """Run a task and record how it ended; whether it is done."""
        self.clock.advance(0.01)
        try:
            finished = self.run(lease)
        except IntermissionError as e:
            failed = Failed(lease.task_id, type(e).__name__, str(e), not e.retryable)
            self.ledger.fail([completion.failure(self.job, lease, failed, (0.0,))])
            return False
        done = [(lease, finished)]
        (accepted,) = completion.complete(self.ledger, self.store, self.job, done, self.scratch)
        return accepted

    def finish_all(self) -> list[str]:
        """Work until nothing is claimable; the tasks that ran."""
        before = len(self.ran)
        while leases := self.take():
            self.finish(leases[0])
        return self.ran[before:]

    def row(self, name: str) -> TaskRow:
        (found,) = [row for row in self.ledger.tasks(self.job.key) if row.name == name]
        return found

    def states(self) -> dict[str, TaskState]:
        return {row.name: row.state for row in self.ledger.tasks(self.job.key)}

    def receipt_key(self, name: str) -> str:
        """Where the receipt of a done task lies, whatever gaps it ran with."""
        row = self.row(name)
        output = output_of(self.ledger, self.job.key, row.step, row.index)
        assert output is not None, f"{name} is not done"
        return receipt_key(row.step, output.task_key)

    def receipt(self, name: str) -> Receipt:
        return Receipt.from_json(self.store.read(self.receipt_key(name)))

    def spoil_file(self, name: str) -> str:
        """Flip a byte of a done task's first file; the file's key."""
        self.clock.advance(1)
        key = self.receipt(name).files[0].key
        data = self.store.read(key)
        self.store.replace(key, bytes([data[0] ^ 1]) + data[1:])
        return key

    def keys(self, prefix: str) -> list[str]:
        return [stat.key for stat in self.store.list(prefix)]

    def quarantined(self) -> list[str]:
        """What was put away, without the folder it was put into."""
        return sorted(key.split("/", 2)[2] for key in self.keys("quarantine/"))
