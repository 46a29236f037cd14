"""What a task takes from upstream, read from the ledger when somebody needs it."""

from __future__ import annotations

from collections.abc import Mapping

from intermission.model import EdgeKind, Job, Output
from intermission.ports.ledger import Ledger, every_output, output_of

Inputs = Mapping[str, Output | tuple[Output | None, ...] | None]


def inputs_of(ledger: Ledger, job: Job, step: str, index: int) -> Inputs:
    """By parameter, what a task takes: one output, or all of a fan-in's."""
    found: dict[str, Output | tuple[Output | None, ...] | None] = {}
    for edge in job.step(step).edges:
        if edge.kind is EdgeKind.ALL:
            outputs = every_output(ledger, job.key, edge.upstream)
            found[edge.param] = tuple(one.output for one in outputs)
        else:
            at = index if edge.kind is EdgeKind.SAME else 0
            found[edge.param] = output_of(ledger, job.key, edge.upstream, at)
    return found
