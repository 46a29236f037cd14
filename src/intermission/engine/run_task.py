"""Running one task, from its lease to its receipt, inside a slot.

`run_task` is the heart of the engine and reads as a straight line. What it reads and writes goes
through a `TaskIO`, never to the ledger: whatever it returns may come too late, and does no harm.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from intermission.engine.inputs import input_digests, input_keys, skipped_inputs
from intermission.engine.planning import parts, with_skipped
from intermission.engine.receipt import new_attempt
from intermission.model import (
    RESULT_INLINE_MAX_BYTES,
    Completion,
    EdgeKind,
    FileRef,
    Job,
    Lease,
    Output,
    Receipt,
    StepSpec,
)
from intermission.pipeline import Chunk, Context, Pipeline, Step
from intermission.pipeline.context import RESULT_NAME
from intermission.ports.slot_protocol import Inputs
from intermission.ports.task_io import TaskIO
from intermission.scratch import holding
from intermission.telemetry import reached


@dataclass(frozen=True)
class Work:
    """What the tasks of one job share inside a slot."""

    job: Job
    pipeline: Pipeline
    io: TaskIO
    worker: str

    @cached_property
    def specs(self) -> dict[str, StepSpec]:
        return {spec.name: spec for spec in self.job.steps}

    @cached_property
    def params(self) -> dict[str, dict[str, Any]]:
        """By step, the parameters it declares."""
        values = self.pipeline.unbind(self.job.params)
        return {spec.name: {name: values[name] for name in spec.params} for spec in self.job.steps}


@dataclass(frozen=True)
class Hooks:
    """How a running step reaches the worker."""

    log: logging.Logger
    report: Callable[[float], None]
    is_cancelled: Callable[[], bool]


def run_task(
    work: Work, lease: Lease, inputs: Inputs, hooks: Hooks, batch: Sequence[Lease] = ()
) -> Completion:
    """Run a task of a batch, or adopt the receipt it already has."""
    spec = work.specs[lease.step]
    if spec.durable:
        return _run_durable(work, spec, lease, inputs, hooks, batch)
    with holding():
        result = _call(work, spec, lease, inputs, hooks, None, batch)
    return Completion(lease.task_id, lease.fence, result, key=lease.key)


@holding()
def _run_durable(
    work: Work,
    spec: StepSpec,
    lease: Lease,
    inputs: Inputs,
    hooks: Hooks,
    batch: Sequence[Lease],
) -> Completion:
    key = with_skipped(lease.key, skipped_inputs(work.job, spec.name, inputs))
    receipt = work.io.adopt(lease, key, input_digests(work.job, spec.name, inputs))
    adopted = receipt is not None
    if receipt is None:
        attempt = new_attempt(lease.fence)
        folder = work.io.folder(lease, key, attempt)
        try:
            result = _call(work, spec, lease, inputs, hooks, folder, batch)
            result, files = _keep(work, lease, key, attempt, folder, result)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        reached("after-artifacts")
        made = receipt_of(
            work.job,
            lease,
            inputs,
            key=key,
            attempt=attempt,
            result=result,
            files=files,
            worker=work.worker,
            ended_ms=time.time_ns() // 1_000_000,
        )
        receipt, ours = work.io.commit(lease, made)
        work.io.discard(folder)
        adopted = not ours
    work.io.publish(lease, receipt)
    ids = lease.task_id, lease.fence
    return Completion(*ids, receipt.result, receipt, adopted, key=lease.key)


def receipt_of(
    job: Job,
    lease: Lease,
    inputs: Inputs,
    *,
    key: str,
    attempt: str,
    result: str,
    files: tuple[FileRef, ...],
    worker: str,
    ended_ms: int,
) -> Receipt:
    """The receipt of an attempt at a task; `key` also tells which chunks a fan-in skips."""
    spec = job.step(lease.step)
    return Receipt(
        task_key=key,
        step=spec.name,
        version=spec.version,
        attempt=attempt,
        fence=lease.fence,
        result=result,
        files=files,
        worker=worker,
        ended_ms=ended_ms,
        chunk=lease.chunk,
        parts=parts(job, spec, input_keys(job, spec.name, inputs)),
        inputs=input_digests(job, spec.name, inputs),
    )


def _call(
    work: Work,
    spec: StepSpec,
    lease: Lease,
    inputs: Inputs,
    hooks: Hooks,
    folder: Path | None,
    batch: Sequence[Lease],
) -> str:
    """The step's result on this task's inputs, as JSON."""
    step = work.pipeline.steps[spec.name]
    arguments = _arguments(work, spec, step, lease, inputs)
    if spec.reads_source:
        work.io.check_source()
    if step.context_param is not None:
        if folder is not None:
            folder.mkdir(parents=True)
        arguments[step.context_param] = Context(
            folder,
            idempotency_key=lease.key,
            attempt=lease.attempt,
            log=hooks.log,
            report=hooks.report,
            is_cancelled=hooks.is_cancelled,
            batch=_unfinished(work, step, batch) if spec.batch_by else (),
        )
    reached("before-step")
    result = step.function(**arguments)
    reached("after-step")
    if spec.reads_source:
        work.io.check_source()
    return step.encode(result, folder)


def _unfinished(work: Work, step: Step, batch: Sequence[Lease]) -> list[Chunk]:
    """The chunks of a batch that have no receipt yet, maybe of another job: the work there is."""
    return [_chunk(step, one) for one in batch if not work.io.is_finished(one)]


def _arguments(
    work: Work, spec: StepSpec, step: Step, lease: Lease, inputs: Inputs
) -> dict[str, Any]:
    """Parameters, the source, the chunk and the results upstream, as the step declares them."""
    arguments = work.params[spec.name].copy()
    if step.source_param is not None:
        arguments[step.source_param] = work.io.source(lease)
    if step.mapped is not None:
        arguments[step.mapped[0]] = _chunk(step, lease)
    for edge in spec.edges:
        values = [_decode(work, lease, edge.upstream, one) for one in inputs[edge.param]]
        arguments[edge.param] = values if edge.kind is EdgeKind.ALL else values[0]
    return arguments


def _chunk(step: Step, lease: Lease) -> Chunk:
    assert step.mapped is not None
    return step.mapped[1].model_validate_json(lease.chunk or "{}")


def _decode(work: Work, lease: Lease, step: str, output: Output | None) -> Any:
    if output is None:
        return None
    files = work.io.files(lease, output)
    return work.pipeline.steps[step].decode(result_text(output, files), files)


def result_text(output: Output, files: Mapping[str, Path]) -> str:
    """A task's result, wherever its size put it."""
    return output.result or files[RESULT_NAME].read_text()


def _keep(
    work: Work, lease: Lease, key: str, attempt: str, folder: Path, result: str
) -> tuple[str, tuple[FileRef, ...]]:
    """Make the attempt's files durable; a large result becomes one of them."""
    if len(result.encode()) > RESULT_INLINE_MAX_BYTES:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT_NAME).write_text(result)
        result = ""
    return result, work.io.keep(lease, key, attempt, folder)
