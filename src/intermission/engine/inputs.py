"""What tasks take from upstream: read from the ledger by whoever runs them, after the claim.

A claim reads no results. Single inputs of a batch are read together; a fan-in is read page by page
each time somebody walks along it, so that nobody holds more of it than they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from intermission.engine.planning import together
from intermission.errors import InputUnfinished
from intermission.model import (
    EdgeKind,
    Job,
    Lease,
    Output,
    TaskOutput,
    TaskState,
    identity,
    identity_of_all,
)
from intermission.ports.ledger import Ledger, every_output, every_task, outputs_at
from intermission.ports.slot_protocol import Inputs

_STOPPED = (TaskState.FAILED, TaskState.CANCELLED)


@dataclass(frozen=True)
class FanIn:
    """All outputs of a step; None for a chunk that was skipped."""

    ledger: Ledger
    job_key: str
    step: str

    def __iter__(self) -> Iterator[Output | None]:
        return map(self._given, every_output(self.ledger, self.job_key, self.step))

    def page(self, after: int, limit: int) -> list[tuple[int, Output | None]]:
        """Up to so many outputs of chunks behind this one, with their indexes."""
        found = self.ledger.outputs(self.job_key, self.step, after=after, limit=limit)
        return [(one.index, self._given(one)) for one in found]

    def _given(self, one: TaskOutput) -> Output | None:
        if one.output is None and one.state not in _STOPPED:
            raise _unfinished(self.step, one.index)
        return one.output

    def skipped(self) -> list[int]:
        """Which chunks were, without a look at the others."""
        rows = every_task(self.ledger, self.job_key, states=_STOPPED, step=self.step)
        return sorted(row.index for row in rows)


def fan_ins(ledger: Ledger, job: Job, step: str) -> dict[str, FanIn]:
    """By parameter, those that take all outputs of a step."""
    return {
        edge.param: FanIn(ledger, job.key, edge.upstream)
        for edge in job.step(step).edges
        if edge.kind is EdgeKind.ALL
    }


def read_inputs(ledger: Ledger, job: Job, leases: Sequence[Lease]) -> dict[int, Inputs]:
    """By task, what tasks of one step take; nothing for a step that takes nothing.

    Raises `InputUnfinished` when one of them was taken back because an input was lost.
    """
    edges = job.step(leases[0].step).edges
    if not edges:
        return {}
    shared = fan_ins(ledger, job, leases[0].step)
    found: dict[int, dict[str, Iterable[Output | None]]] = {
        one.task_id: {**shared} for one in leases
    }
    for edge in (edge for edge in edges if edge.kind is not EdgeKind.ALL):
        same = edge.kind is EdgeKind.SAME
        wanted = {one.index for one in leases} if same else {0}
        outputs = outputs_at(ledger, job.key, edge.upstream, wanted)
        made = {one.index: (one.output,) for one in outputs if one.output is not None}
        for lease in leases:
            index = lease.index if same else 0
            if index not in made:
                raise _unfinished(edge.upstream, index)
            found[lease.task_id][edge.param] = made[index]
    return dict(found)


def inputs_of(ledger: Ledger, job: Job, lease: Lease) -> Inputs:
    """By parameter, what one task takes. Raises `InputUnfinished`."""
    return read_inputs(ledger, job, [lease]).get(lease.task_id, {})


def _unfinished(step: str, index: int) -> InputUnfinished:
    return InputUnfinished(f"{step}[{index}] is not done any more.")


def skipped_inputs(job: Job, step: str, inputs: Inputs) -> list[str]:
    """Where a fan-in's inputs were skipped, as `param:index`; other inputs are not looked at."""
    return [
        f"{edge.param}:{index}"
        for edge in job.step(step).edges
        if edge.kind is EdgeKind.ALL
        for index in _skipped(inputs[edge.param])
    ]


def _skipped(outputs: Iterable[Output | None]) -> Iterable[int]:
    if isinstance(outputs, FanIn):
        return outputs.skipped()
    return (index for index, output in enumerate(outputs) if output is None)


def input_digests(job: Job, step: str, inputs: Inputs) -> dict[str, str]:
    """By parameter, what a task gets from steps with receipts: results and files, by content."""
    params = [edge.param for edge in job.step(step).edges if job.step(edge.upstream).durable]
    return {param: identity_of_all("input", map(_digest, inputs[param])) for param in params}


def _digest(output: Output | None) -> str:
    if output is None:
        return "gap"
    return identity(output.result, *(f"{file.name}:{file.sha256}" for file in output.files))


def input_keys(job: Job, step: str, inputs: Inputs) -> dict[str, str]:
    """By parameter, the key of what a task takes."""
    found: dict[str, str] = {}
    for edge in job.step(step).edges:
        keys = ("gap" if one is None else one.task_key for one in inputs[edge.param])
        found[edge.param] = together(keys) if edge.kind is EdgeKind.ALL else next(keys)
    return found
