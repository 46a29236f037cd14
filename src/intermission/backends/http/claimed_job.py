"""A job that a worker has leases of, behind a server: what its slots need, and where ends go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import quote

from intermission.backends.http.task_io import HttpIO
from intermission.backends.http.work_client import WorkClient
from intermission.errors import NoPipeline
from intermission.model import Failure, Job, Lease, Reason, Source, TaskState, canonical, identity
from intermission.pipeline.catalog import Catalog
from intermission.ports.ledger import Ask
from intermission.ports.slot_protocol import (
    Completed,
    CorruptInput,
    Deferral,
    Failed,
    Inputs,
    JobContext,
)
from intermission.ports.work_source import Renewals
from intermission.settings import Settings


@dataclass(frozen=True)
class HttpJob:
    """`ClaimedJob` over the worker API."""

    client: WorkClient
    job: Job
    ref: str
    worker: str
    settings: Settings
    scratch: Path
    logs: Path
    inline_max_bytes: int
    resources: ExitStack = field(default_factory=ExitStack)

    @property
    def name(self) -> str:
        return self.job.key

    @property
    def open_renewals(self) -> Callable[[], Renewals]:
        return self.client.renewals

    def context(self) -> JobContext:
        at = self.client.url, self.client.key
        return JobContext(
            name=self.name,
            job=self.job,
            ref=self.ref,
            open_io=partial(HttpIO, *at, self.job, self.scratch, self.inline_max_bytes),
            folder=self.logs,
            worker=self.worker,
            settings=self.settings,
        )

    def inputs(self, leases: Sequence[Lease]) -> Mapping[int, Inputs]:
        edges = self.job.step(leases[0].step).edges
        return {one.task_id: self.client.inputs(one, edges) for one in leases}

    def complete(
        self, done: Sequence[tuple[Lease, Completed]], ask: Ask | None = None
    ) -> list[Lease]:
        ends = self.client.complete(
            [
                (
                    lease.task_id,
                    lease.fence,
                    ended.result,
                    ended.receipt.files if ended.receipt else (),
                )
                for lease, ended in done
            ]
        )
        for (lease, _), end in zip(done, ends, strict=True):
            if end.problem:  # it will be refused however often it comes
                refused = Failed(lease.task_id, "Refused", end.problem, True)
                self.fail(lease, refused)
        return []

    def fail(self, lease: Lease, failed: Failed) -> TaskState | None:
        how = failed.error, failed.message, failed.permanent
        failure = Failure(failed.task_id, lease.fence, *how, code=failed.code)
        return self.client.fail_one(failure, failed.wait_s)

    def invalidate(self, lease: Lease, corrupt: CorruptInput) -> None:
        """The server knows: it found out when it was asked for the file."""
        self.release([lease], reason=Reason.INPUT_LOST, message=corrupt.message)

    def defer(self, lease: Lease, deferral: Deferral) -> None:
        _, token, timeout_s = deferral
        self.client.defer(lease.task_id, lease.fence, token=token, timeout_s=timeout_s)

    def release(self, leases: Sequence[Lease], *, reason: Reason, message: str = "") -> None:
        held = [(one.task_id, one.fence) for one in leases]
        self.client.release(held, reason=reason, message=message)


def open_http_job(
    client: WorkClient, catalog: Catalog, worker: str, settings: Settings, scratch: Path, key: str
) -> HttpJob:
    """The job with this key, of which leases were just claimed. Raises `NoPipeline`."""
    task = client.shared(key)
    entry = catalog.named(task.pipeline)
    if entry.pipeline.code != task.code:
        raise NoPipeline(
            f"expected {task.code}, found {entry.pipeline.code}: the pipeline here is another "
            "version.",
            remedy="Run a worker that has that version.",
        )
    given = task.source
    uri = f"{client.url}{given.url}/{quote(given.name, safe='')}"  # its bytes are read with a lease
    source = Source(uri, given.fingerprint, given.size_bytes)
    params = canonical(dict(task.params))
    job = Job(key, task.pipeline, entry.pipeline.graph, source, params, entry.pipeline.specs)
    logs = scratch.parent / "workspaces" / identity(client.url, key)[:20]
    most = task.inline_max_bytes
    return HttpJob(client, job, entry.ref, worker, settings, scratch, logs, most)
