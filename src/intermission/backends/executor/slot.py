"""A slot: a child process that loads a pipeline once and runs one task at a time.

It talks to its worker over one connection and never to a ledger. It can be killed at any
instant: what it had not committed by a receipt did not happen.
"""

from __future__ import annotations

import errno
import gc
import io
import logging
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import ceil
from multiprocessing.connection import Connection
from pathlib import Path

from intermission.engine.run_task import Hooks, Work, run_task
from intermission.errors import (
    CorruptArtifact,
    EnvironmentFault,
    IntermissionError,
    PipelineError,
    StoreError,
    StoreUnavailable,
    TaskError,
    fault_from_os,
)
from intermission.model import Lease, Output, Reason
from intermission.pipeline import Deferred, Pipeline, load
from intermission.ports.slot_protocol import (
    Batch,
    Cancel,
    Completed,
    CorruptInput,
    Deferral,
    Failed,
    HostFault,
    InputPage,
    Inputs,
    JobContext,
    Outcome,
    Progress,
)
from intermission.settings import Settings, use

FLUSH_EVERY_S = 0.1
"""How long an end may wait for others, to be recorded with them in one transaction."""
PROGRESS_EVERY_S = 0.5
WARNINGS_MAX = 10
"""As many warnings of one attempt travel to the worker; its log has them all."""
YOUNG_MAX = 5000
"""As many new values before Python looks for garbage: a plan may return a million chunks."""
MACHINE_ERRNOS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EIO}
)
"""A step that meets one of these has met the machine's limits; trying again cannot help."""


def main(connection: Connection) -> None:
    """Serve the worker until it closes the connection."""
    gc.set_threshold(YOUNG_MAX)
    log = TaskLog()
    sys.stdout = sys.stderr = log
    Slot(connection, log).run()


class Slot:
    """Runs what its worker sends. A simulation has its own clock, log and code."""

    def __init__(
        self,
        connection: Connection,
        log: TaskLog,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        open_pipeline: Callable[[JobContext], Pipeline] | None = None,
    ) -> None:
        self._connection = connection
        self._monotonic_s = monotonic_s
        self._open_pipeline = open_pipeline or _open_pipeline
        self._contexts: dict[str, JobContext] = {}
        self._works: dict[str, Work] = {}
        self._log = log
        self.lease: Lease | None = None
        """What it runs, or ran last."""
        self._batch: Sequence[Lease] = ()
        self._paged: dict[int, dict[str, list[Output | None]]] = {}
        """By task and parameter, what has come of fan-ins whose batch is still to come."""
        self._hooks = Hooks(self._log.logger, self._report, self._is_cancelled)
        self._cancelled: int | None = None
        self._unsent: list[Outcome] = []
        self._sent_at = 0.0
        self._reported_at = 0.0

    def run(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                return
            if isinstance(message, JobContext):
                self._contexts[message.name] = message
            elif isinstance(message, InputPage):
                of_task = self._paged.setdefault(message.task_id, {})
                outputs = of_task.setdefault(message.param, [])
                outputs[message.first :] = message.outputs
            elif isinstance(message, Batch):
                self._sent_at = self._monotonic_s()  # the first end may wait as long as any other
                self._batch = message.leases
                context = self._contexts[message.context]
                for lease in message.leases:
                    inputs = message.inputs.get(lease.task_id, {})
                    if lease.task_id in self._paged:
                        inputs = {**inputs, **self._paged.pop(lease.task_id)}
                    self._unsent.append(self._run_one(context, lease, inputs))
                    if self._monotonic_s() - self._sent_at > FLUSH_EVERY_S:
                        self._flush()
                self._log.close_last()
                self._flush()

    def _flush(self) -> None:
        if self._unsent:
            self._connection.send(self._unsent)
            self._unsent = []
        self._sent_at = self._monotonic_s()

    def _run_one(self, context: JobContext, lease: Lease, inputs: Inputs) -> Outcome:
        started = self._monotonic_s()
        try:
            self._log.begin(context, lease)
            self.lease, self._cancelled = lease, None
            done = run_task(self._work(context), lease, inputs, self._hooks, self._batch)
            took_s = self._monotonic_s() - started
            made = done.result, done.receipt, done.adopted
            return Completed(lease.task_id, *made, took_s, self._log.warnings())
        except Deferred as e:
            return Deferral(lease.task_id, e.token, e.timeout_s)
        except CorruptArtifact as e:
            return CorruptInput(lease.task_id, e.task_key, e.key, str(e))
        except Exception as e:
            return host_fault(lease, e) or self._failed(lease, e)
        finally:
            self._log.end()

    def _failed(self, lease: Lease, e: Exception) -> Failed:
        self._log.write(traceback.format_exc())
        ours = isinstance(e, IntermissionError)
        message = str(e) if ours else f"{type(e).__name__}: {e}"
        permanent = isinstance(e, IntermissionError) and not e.retryable
        wait_s = e.retry_after_s if isinstance(e, TaskError) else None
        self._log.warnings()
        return Failed(lease.task_id, type(e).__name__, message, permanent, wait_s)

    def _work(self, context: JobContext) -> Work:
        job = context.job
        if context.name not in self._works:
            try:
                pipeline = self._open_pipeline(context)
            except PipelineError as e:
                raise _NotHere(e.message, remedy=e.remedy) from e
            if pipeline.code != job.code:
                raise _NotHere(
                    f"{context.ref} is not the pipeline this job was planned with.",
                    remedy="Its code changed meanwhile: run the same command again.",
                )
            self._works[context.name] = Work(
                job=job,
                pipeline=pipeline,
                io=context.open_io(),
                worker=context.worker,
            )
        _limit(context.settings)
        return self._works[context.name]

    def _report(self, fraction: float) -> None:
        lease, now = self.lease, self._monotonic_s()
        if lease is not None and now - self._reported_at >= PROGRESS_EVERY_S:
            self._reported_at = now
            self._connection.send([Progress(lease.task_id, fraction)])

    def _is_cancelled(self) -> bool:
        running = None if self.lease is None else self.lease.task_id
        while self._cancelled != running and self._connection.poll():
            message = self._connection.recv()
            if isinstance(message, Cancel):
                self._cancelled = message.task_id
        return self._cancelled == running


class _NotHere(PipelineError):
    """The code that a job needs is not in this process."""


def _open_pipeline(context: JobContext) -> Pipeline:
    use(context.settings)
    pipeline = load(context.ref)
    gc.freeze()  # what the pipeline imported stays: nobody looks for garbage in it
    return pipeline


def host_fault(lease: Lease, e: Exception) -> HostFault | None:
    """Whether the machine is at fault, or a store that is away; None where it is the task."""
    match e:
        case StoreUnavailable():
            reason = Reason.STORE_AWAY
        case StoreError():
            reason = Reason.STORE_UNREACHABLE
        case EnvironmentFault():
            reason = _reason_of(e.__cause__)
        case _NotHere():
            reason = Reason.OTHER_VERSION
        case ModuleNotFoundError():
            remedy = "Install it where this worker runs."
            return HostFault(
                lease.task_id, f"{lease.step}: {e}.", remedy, 4, Reason.MISSING_PACKAGE
            )
        case OSError() if e.errno in MACHINE_ERRNOS:
            fault = fault_from_os(e, f"running {lease.step}", EnvironmentFault)
            return HostFault(
                lease.task_id, fault.message, fault.remedy, fault.exit_code, _reason_of(e)
            )
        case _:
            return None
    code = e.exit_code if isinstance(e, EnvironmentFault) else EnvironmentFault.exit_code
    return HostFault(lease.task_id, e.message, e.remedy, code, reason)


def _reason_of(e: BaseException | None) -> Reason:
    if not isinstance(e, OSError):
        return Reason.HOST_FAULT
    full = e.errno in (errno.ENOSPC, errno.EDQUOT)
    return Reason.SCRATCH_FULL if full else Reason.SCRATCH_FAILED


def _limit(settings: Settings) -> None:
    """Memory for the slot as a whole, CPU seconds from here on."""
    if settings.slot_memory_bytes is not None:
        limits = (settings.slot_memory_bytes, settings.slot_memory_bytes)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    if settings.slot_cpu_s is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + 1 + ceil(settings.slot_cpu_s)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))


def log_name(step: str, task_key: str, attempt: int) -> str:
    """Where an attempt's log lies below the folder of its job."""
    return f"logs/{step}/{task_key}.{attempt}.log"


class TaskLog(io.TextIOBase):
    """Standard output, standard error and `ctx.log` of one attempt, and of what it starts.

    A file that stayed empty becomes the next attempt's, or is removed: inside a batch, making
    and removing one for every attempt would cost as much as all its receipts. A log is for
    people: that it cannot be written, on a full disk say, never fails a task.
    """

    def __init__(self) -> None:
        self._attempt: tuple[JobContext, Lease] | None = None
        self._fd: int | None = None
        self._path = ""
        self._last: tuple[int, str] | None = None
        self._null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self.logger = logging.Logger("intermission.step")
        handler = logging.StreamHandler(self)
        formatter = logging.Formatter(
            "%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
        self._warned = _Warnings()
        # Ours too: what is told while a task is read or published is told of that task.
        for logger in (self.logger, logging.getLogger("intermission")):
            logger.handlers[:] = [handler, self._warned]

    def begin(self, context: JobContext, lease: Lease) -> None:
        self._attempt = context, lease
        if not context.job.step(lease.step).durable:
            self.close_last()
        else:
            self._open()

    def _open(self) -> None:
        if self._fd is None and self._attempt is not None:
            context, lease = self._attempt
            path = f"{context.folder}/{log_name(lease.step, lease.key, lease.attempt)}"
            with suppress(OSError):
                self._fd = self._reuse_last(path) or _append_to(path)
                self._path = path
                _redirect(self._fd)

    def _reuse_last(self, new: str) -> int | None:
        if self._last is None:
            return None
        fd, path = self._last
        with suppress(OSError):
            if os.fstat(fd).st_size == 0 and not Path(new).exists():
                Path(path).rename(new)
                self._last = None
                return fd
        self.close_last()
        return None

    def end(self) -> None:
        if self._fd is not None:
            self._last = self._fd, self._path
        self._fd = self._attempt = None

    def warnings(self) -> tuple[str, ...]:
        """What this attempt warned of, for whoever watches the run."""
        said = tuple(self._warned.said)
        self._warned.said.clear()
        return said

    def close_last(self) -> None:
        """Be done with the log of the last attempt; nothing is written until the next."""
        if self._last is not None:
            (fd, path), self._last = self._last, None
            _redirect(self._null)
            with suppress(OSError):
                if os.fstat(fd).st_size == 0:
                    Path(path).unlink()
                os.close(fd)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._open()
        if self._fd is not None:
            with suppress(OSError):
                os.write(self._fd, text.encode(errors="replace"))
        return len(text)


class _Warnings(logging.Handler):
    """Keeps the text of every warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.said) < WARNINGS_MAX:
            self.said.append(record.getMessage())


def _append_to(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)


def _redirect(fd: int) -> None:
    """What child processes write goes where the step's own output goes."""
    os.dup2(fd, 1)
    os.dup2(fd, 2)
