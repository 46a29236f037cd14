"""Work for workers that reach neither the ledger nor the storage: leases, files and ends.

A worker has a lease token for each task it was given, and with it reads that task's inputs and
source, adds files to that attempt and ends it. Everything that others believe is written here:
the receipt, the tasks of a plan, the outputs. So a worker can spoil the result of a task that it
holds, and nothing else. Whatever is kept in memory can be read again from the ledger: a server
may be restarted at any time, and several may share one ledger.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby

from intermission.backends.http import work_schema as wire
from intermission.composition.fleet import Fleet, fleet_delays
from intermission.engine import completion
from intermission.engine.inputs import read_inputs
from intermission.engine.receipt import adopt, peek, receipt_key
from intermission.errors import InputUnfinished, IntermissionError, Permanent, UsageError
from intermission.model import (
    RESULT_INLINE_MAX_BYTES,
    Completion,
    EdgeKind,
    Heartbeat,
    JobState,
    Reason,
    TaskState,
)
from intermission.operations.held_tasks import HeldTask, HeldTasks, NoLease, Worker
from intermission.operations.lease_tokens import read_token
from intermission.operations.remote_files import direct_upload, first_page, keep_inline, settle
from intermission.operations.remote_results import Refused
from intermission.operations.task_ends import completion_of, finished, kept_files, publish_outputs
from intermission.ports.ledger import Ledger
from intermission.ports.slot_protocol import Failed, Inputs

ARTIFACT_MAX_BYTES = 256 * 1024**3
WRITERS = 16
"""Receipts that are written at a time."""
RESCUE_SHARE = 1 / 12
"""How much of a lease's life passes between two looks for leases that ended."""
_LOST = wire.End(accepted=False)


class RemoteWork:
    """What a server does for its workers. For any thread."""

    def __init__(self, fleet: Fleet, *, artifact_max_bytes: int = ARTIFACT_MAX_BYTES) -> None:
        self.artifact_max_bytes = artifact_max_bytes
        self._fleet = fleet
        self._settings = fleet.settings
        self._tasks = HeldTasks(fleet)
        self._writers = ThreadPoolExecutor(WRITERS, "receipts")
        self._lock = threading.Lock()
        self._rescued_s = 0.0

    def claim(self, worker: Worker, asked: wire.Claim) -> wire.Claimed:
        """Leases for as many tasks as there is room for, highest priority first."""
        self._rescue()
        self._tasks.close_unused()
        process = worker.process(asked.process)
        lease_s = asked.lease_s or self._settings.lease_ttl_s
        asked_at_s = time.monotonic()
        leases = self._ledger.claim(
            process,
            asked.room,
            lease_ttl_s=lease_s,
            host=_host(worker, asked.host),
            offers=asked.offers,
            runs=asked.runs,
            begin=asked.begin,
        )
        given: list[wire.LeasedTask] = []
        try:
            for _, some in groupby(leases, lambda one: (one.job_key, one.step)):
                found = [self._tasks.hold(one, process, asked_at_s + lease_s) for one in some]
                ready = [one for one in found if one is not None and not self._adopted(one)]
                given += self._described(ready, worker, lease_s)
        except BaseException:
            # Whoever asked hears nothing of these, so nobody would run them before they expire.
            with suppress(IntermissionError):
                unheard = [(one.task_id, one.fence) for one in leases]
                self._ledger.release(
                    unheard, reason=Reason.LEASE_LOST, message="the claim was not answered"
                )
            raise
        return wire.Claimed(leases=given, again=len(given) < len(leases))

    def renew(self, worker: Worker, asked: wire.Renew) -> wire.Renewed:
        """Extend leases and take their progress; which are lost, which are cancelled."""
        lease_s = asked.lease_s or self._settings.lease_ttl_s
        tokens = {
            one.lease: token
            for one in asked.leases
            if (token := read_token(one.lease, worker.secret)) is not None
        }
        asked_at_s = time.monotonic()
        heartbeats = [
            Heartbeat(tokens[one.lease].task_id, tokens[one.lease].fence, one.progress, one.begun)
            for one in asked.leases
            if one.lease in tokens
        ]
        process = worker.process(asked.process)
        answer = self._ledger.renew(process, heartbeats, lease_ttl_s=lease_s)
        gone = answer.lost | answer.cancelled
        held = {(token.task_id, token.fence) for token in tokens.values()}
        ended = {lease for lease in held if lease[0] in gone}
        self._tasks.renewed(held - ended, asked_at_s + lease_s)
        self._tasks.forget(ended)
        return wire.Renewed(lost=sorted(answer.lost), cancelled=sorted(answer.cancelled))

    def cancelled(self, worker: Worker, asked: wire.Cancelled) -> wire.CancelledJobs:
        """Which jobs of these leases are cancelled: a cheap look, often asked for."""
        tokens = [read_token(text, worker.secret) for text in asked.leases]
        keys = {token.job_key for token in tokens if token is not None}
        states = [JobState.CANCELLED]
        found = [key for key in keys if self._ledger.jobs(key, states=states, limit=1)]
        return wire.CancelledJobs(jobs=sorted(found))

    def complete(self, worker: Worker, asked: wire.Complete) -> wire.Completed:
        """Write receipts, put outputs in place, and record the ends; which were accepted.

        A repeat is answered as the first call was.
        """
        # Each receipt is synced to the disk, which many can wait for at once.
        others = self._writers.map(partial(self._written, worker), asked.done[1:])
        written = [self._written(worker, done) for done in asked.done[:1]]
        written += others
        ends = [one if isinstance(one, wire.End) else _LOST for one in written]
        by_job: dict[str, list[tuple[int, HeldTask, Completion]]] = {}
        for at, one in enumerate(written):
            if not isinstance(one, wire.End):
                by_job.setdefault(one[0].lease.job_key, []).append((at, *one))
        for some in by_job.values():
            accepted = self._record([(held, finished) for _, held, finished in some])
            for (at, _, _), is_accepted in zip(some, accepted, strict=True):
                ends[at] = wire.End(accepted=is_accepted)
        return wire.Completed(ends=ends)

    def _written(self, worker: Worker, done: wire.Done) -> tuple[HeldTask, Completion] | wire.End:
        """A task's end with its receipt, ready to be recorded; or why there is none."""
        try:
            held = self._tasks.find(worker, done.lease)
            return held, self._finished(held, done)
        except (NoLease, InputUnfinished):
            return _LOST
        except (Refused, Permanent, UsageError) as e:
            return wire.End(accepted=False, problem=str(e))

    def fail(self, worker: Worker, asked: wire.Fail) -> wire.Failed:
        """Record failed attempts; the state each task is in now."""
        states: list[str | None] = []
        for one in asked.failed:
            state: TaskState | None = None
            with suppress(NoLease):
                held = self._tasks.find(worker, one.lease)
                how = one.error, one.message, one.permanent, one.retry_after_s
                failed = Failed(held.lease.task_id, *how)
                delays = fleet_delays(self._settings)
                failure = completion.failure(held.opened.job, held.lease, failed, *delays)
                (state,) = self._ledger.fail([replace(failure, code=one.reason)])
                self._tasks.let_go(held)
            states.append(None if state is None else state.value)
        return wire.Failed(states=states)

    def release(self, worker: Worker, asked: wire.Release) -> wire.Released:
        """Take leases back; the attempts do not count."""
        tokens = [read_token(text, worker.secret) for text in asked.leases]
        leases = [(token.task_id, token.fence) for token in tokens if token is not None]
        self._tasks.forget(leases)
        released = self._ledger.release(
            leases,
            reason=asked.reason,
            message=asked.message or None,
            host=_host(worker, asked.host) or None,
            until_s=asked.exclude_s,
        )
        return wire.Released(released=released)

    def defer(self, worker: Worker, asked: wire.Defer) -> wire.Deferred:
        """Keep a task running without a worker until its token is reported, or the time-out."""
        token = read_token(asked.lease, worker.secret)
        accepted = token is not None and self._ledger.defer(
            token.task_id, token.fence, token=asked.token, timeout_s=asked.timeout_s
        )
        return wire.Deferred(accepted=accepted)

    def upload(self, worker: Worker, asked: wire.Upload) -> wire.UploadAt:
        """Where the store itself takes an artifact. Raises `UsageError` for a bad name."""
        try:
            return direct_upload(self.current(worker, asked.lease), asked)
        except NoLease:
            return wire.UploadAt(url=None, headers={})

    def current(self, worker: Worker, lease: str) -> HeldTask:
        """The task that a lease token opens. Raises `NoLease`."""
        held = self._tasks.find(worker, lease)
        self._tasks.check_current(held)
        return held

    def check_current(self, held: HeldTask) -> None:
        """Raise `NoLease` if the lease ended meanwhile."""
        self._tasks.check_current(held)

    @property
    def _ledger(self) -> Ledger:
        return self._fleet.ledger

    def _rescue(self) -> None:
        """Give vanished workers' tasks back. Idle workers ask often, so this is often enough."""
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._rescued_s < self._settings.lease_ttl_s * RESCUE_SHARE:
                return
            self._rescued_s = now_s
        self._ledger.rescue()

    def _adopted(self, held: HeldTask) -> bool:
        """Whether a task was finished before, in which case it is recorded and needs no worker."""
        store, spec = held.opened.store, held.spec
        if not spec.durable or store.stat(receipt_key(spec.name, held.receipt_key)) is None:
            return False
        receipt = adopt(store, spec.name, held.receipt_key, held.opened.scratch)
        if receipt is None:
            return False
        publish_outputs(held, receipt)
        self._record([(held, completion_of(held, receipt, adopted=True))])
        return True

    def _described(
        self, some: Sequence[HeldTask], worker: Worker, lease_s: float
    ) -> list[wire.LeasedTask]:
        """Tasks of one step; none, if they were taken back in between."""
        if not some:
            return []
        leases = [held.lease for held in some]
        try:
            found = read_inputs(self._ledger, some[0].opened.job, leases)
            return [
                self._describe(held, found.get(held.lease.task_id, {}), worker, lease_s)
                for held in some
            ]
        except InputUnfinished as e:
            unheard = [(one.task_id, one.fence) for one in leases]
            self._ledger.release(unheard, reason=Reason.INPUT_LOST, message=str(e))
            return []

    def _describe(
        self, held: HeldTask, inputs: Inputs, worker: Worker, lease_s: float
    ) -> wire.LeasedTask:
        lease, job, spec = held.lease, held.opened.job, held.spec
        taken = {
            edge.param: wire.TaskInput(
                step=edge.upstream,
                is_list=edge.kind is EdgeKind.ALL,
                **dict(first_page(edge.param, inputs[edge.param])),
            )
            for edge in spec.edges
        }
        source = job.source
        return wire.LeasedTask(
            token=held.token.sign(worker.secret),
            task=lease.task_id,
            fence=lease.fence,
            job=job.key,
            pipeline=job.pipeline,
            code=job.code,
            step=spec.name,
            version=spec.version,
            durable=spec.durable,
            params=json.loads(job.params),
            chunk=None if lease.chunk is None else json.loads(lease.chunk),
            index=lease.index,
            attempt=lease.attempt,
            key=lease.key,
            source=wire.SourceReference(
                name=source.name,
                size_bytes=source.size_bytes,
                fingerprint=source.fingerprint,
                url=wire.SOURCE,
            ),
            inputs=taken,
            timeout_s=spec.timeout_s,
            artifact_max_bytes=self.artifact_max_bytes,
            result_max_bytes=RESULT_INLINE_MAX_BYTES,
            inline_max_bytes=wire.INLINE_MAX_BYTES,
            lease_s=lease_s,
            alone=lease.alone,
        )

    def _finished(self, held: HeldTask, done: wire.Done) -> Completion:
        """A task's end with its receipt, which is created here unless one stands already."""
        if held.spec.durable and not self._tasks.is_current(held):
            standing = peek(held.opened.store, held.spec.name, held.receipt_key)
            if standing is None or standing.attempt != held.token.attempt:
                raise NoLease("the lease ended.")
            return completion_of(held, standing, adopted=False)
        for one in done.files:
            if one.direct:
                settle(held, one)
            elif one.content is not None:
                keep_inline(held, one, one.content)
        files = kept_files(held, done.files, lambda one: held.artifact_key(one.name))
        return finished(held, done.result, files, self._fleet.app.clock.now_ms())

    def _record(self, finished: Sequence[tuple[HeldTask, Completion]]) -> list[bool]:
        """Write ends of one job's tasks into the ledger, with what they unblock or add."""
        opened = finished[0][0].opened
        done = [(held.lease, end) for held, end in finished]
        accepted = completion.complete(self._ledger, opened.store, opened.job, done, opened.scratch)
        for held, _ in finished:
            self._tasks.let_go(held)
        needed = {edge.upstream for spec in opened.job.steps for edge in spec.edges}
        if any(held.lease.step in needed for held, _ in finished):
            self._fleet.notify()
        return accepted


def _host(worker: Worker, name: str | None) -> str:
    """A host as the ledger knows it: no worker speaks for another's machine."""
    return "" if name is None else worker.process(name)
