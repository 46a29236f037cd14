"""Which tasks hang on a task, worked out from the step graph alone."""

from __future__ import annotations

from collections.abc import Collection

from intermission.model import EdgeKind, Job

EVERY = None
"""In place of an index: every task of the step."""


def dependants(
    job: Job,
    step: str,
    index: int | None,
    kinds: Collection[EdgeKind] = (EdgeKind.ONE, EdgeKind.SAME, EdgeKind.ALL),
) -> list[tuple[str, int | None]]:
    """The (step, index) pairs that need this task, directly or not, upstream first.

    `kinds` limits which edges are followed: a gap spreads over SAME edges alone.
    """
    reached: dict[str, set[int | None]] = {step: {index}}
    for spec in job.steps:  # in topological order
        for edge in spec.edges:
            if edge.kind in kinds and edge.upstream in reached:
                found = reached[edge.upstream] if edge.kind is EdgeKind.SAME else {EVERY}
                reached.setdefault(spec.name, set()).update(found)
    del reached[step]
    return [
        (name, index)
        for name, indexes in reached.items()
        for index in ({EVERY} if EVERY in indexes else indexes)
    ]
