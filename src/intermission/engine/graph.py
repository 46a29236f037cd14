"""Which tasks hang on a task, worked out from the step graph alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from intermission.model import EdgeKind, Job

EVERY = None
"""In place of an index: every task of the step."""


def dependants(
    job: Job,
    step: str,
    index: int | None,
    kinds: Collection[EdgeKind] = (EdgeKind.ONE, EdgeKind.SAME, EdgeKind.ALL),
    *,
    through_plans: bool = False,
) -> list[tuple[str, int | None]]:
    """The (step, index) pairs that need this task, directly or not, upstream first.

    `kinds` limits which edges are followed: a gap spreads over SAME edges alone. With
    `through_plans`, a fan-in also hangs on the plan that says how many inputs it has.
    """
    reached: dict[str, set[int | None]] = {step: {index}}
    for spec in job.steps:  # in topological order
        for edge in spec.edges:
            plan = job.step(edge.upstream).plan if edge.kind is EdgeKind.ALL else None
            if through_plans and plan in reached:
                reached.setdefault(spec.name, set()).add(EVERY)
            if edge.kind in kinds and edge.upstream in reached:
                found = reached[edge.upstream] if edge.kind is EdgeKind.SAME else {EVERY}
                reached.setdefault(spec.name, set()).update(found)
    del reached[step]
    return [
        (name, index)
        for name, indexes in reached.items()
        for index in ({EVERY} if EVERY in indexes else indexes)
    ]


def made_of_all(job: Job, steps: Iterable[str]) -> list[str]:
    """The steps that take all tasks of one of these, directly or not, upstream first."""
    found = {name for step in steps for name, _ in dependants(job, step, EVERY, (EdgeKind.ALL,))}
    return [spec.name for spec in job.steps if spec.name in found]
