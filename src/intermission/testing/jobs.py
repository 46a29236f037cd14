"""Small jobs for suites and simulators: steps, the tasks their plans call for, and completions.

It plans as the engine does: a task's key hangs on its chunk and the keys upstream, and a task
can be named as soon as every plan above it is done. No step here has any code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from intermission.model import (
    Completion,
    Edge,
    EdgeKind,
    FileRef,
    Job,
    Lease,
    Receipt,
    Source,
    StepKind,
    StepSpec,
    Task,
    TaskState,
    canonical,
    identity,
)
from intermission.pipeline.graph import graph_of
from intermission.ports.ledger import Ledger, every_task, output_of

Chunks = Sequence[str]
Plans = Mapping[str, Chunks]
"""The chunks each plan that is done has found."""


def step(
    name: str,
    kind: StepKind = StepKind.SINGLE,
    *,
    one: Iterable[str] = (),
    same: Iterable[str] = (),
    every: Iterable[str] = (),
    **options: Any,
) -> StepSpec:
    """A step that takes the results of other steps: of one task, chunk by chunk, or of all."""
    edges = (
        *(Edge(up, up, EdgeKind.ONE) for up in one),
        *(Edge(up, up, EdgeKind.SAME) for up in same),
        *(Edge(up, up, EdgeKind.ALL) for up in every),
    )
    return StepSpec(name, 1, kind, edges, **options)


def plan(name: str, **options: Any) -> StepSpec:
    return step(name, StepKind.PLAN, **options)


def mapped(name: str, over: str, **options: Any) -> StepSpec:
    """A step that runs once for each chunk of the plan `over`."""
    return step(name, StepKind.MAP, plan=over, **options)


def reduce(name: str, *every: str, **options: Any) -> StepSpec:
    return step(name, StepKind.REDUCE, every=every, **options)


def job(
    *steps: StepSpec,
    key: str = "job",
    pipeline: str = "pipeline",
    priority: int = 0,
    not_before_ms: int = 0,
) -> Job:
    """A job of these steps, given in topological order."""
    source = Source(f"file:///media/{key}.mp4", identity(key), 1)
    return Job(key, pipeline, graph_of(steps), source, "{}", steps, priority, not_before_ms)


def line_job(**options: Any) -> Job:
    """Two steps, one after the other: fetch, pack."""
    return job(step("fetch"), step("pack", one=["fetch"]), **options)


def fan_job(*, skippable: bool = False, attempts: int = 3, **options: Any) -> Job:
    """A plan, its chunks, and their fan-in: cut, hear, join."""
    return job(
        plan("cut"),
        mapped("hear", "cut", skippable=skippable, attempts=attempts),
        reduce("join", "hear"),
        **options,
    )


def chain_job(*, skippable: bool = False, **options: Any) -> Job:
    """Two maps in a row without a barrier: cut, sample, read, index."""
    return job(
        plan("cut"),
        mapped("sample", "cut", skippable=skippable),
        mapped("read", "cut", same=["sample"]),
        reduce("index", "read"),
        **options,
    )


def pair_job(*, skippable: bool = False, **options: Any) -> Job:
    """Two plans whose chunks meet in one fan-in: cut, split, hear, see, join."""
    return job(
        plan("cut"),
        plan("split"),
        mapped("hear", "cut"),
        mapped("see", "split", skippable=skippable),
        reduce("join", "hear", "see"),
        **options,
    )


def chunks(count: int, *, salt: str = "") -> list[str]:
    """Chunks of a plan; another salt makes other chunks."""
    return [canonical({"n": n, "salt": salt}) for n in range(count)]


def tasks_of(made: Job, plans: Plans) -> list[Task]:
    """Every task of a job that can be named once these plans are done, in step order."""
    named: dict[str, list[Task]] = {}
    for spec in made.steps:
        if spec.plan is not None and spec.plan not in plans:
            continue
        if all(edge.upstream in named for edge in spec.edges):
            over = [None] if spec.plan is None else plans[spec.plan]
            named[spec.name] = [
                _task(made, spec, index, chunk, named) for index, chunk in enumerate(over)
            ]
    return [task for tasks in named.values() for task in tasks]


def _task(
    made: Job, spec: StepSpec, index: int, chunk: str | None, named: Mapping[str, list[Task]]
) -> Task:
    parts = [made.source.fingerprint, spec.name, str(spec.version), chunk or ""]
    for edge in spec.edges:
        upstream = named[edge.upstream]
        if edge.kind is EdgeKind.SAME:
            upstream = [upstream[index]]
        parts += [edge.param, *(task.key for task in upstream)]
    return Task(spec.name, index, identity(*parts), chunk)


def tasks_behind(made: Job, plan_step: str, plans: Plans) -> list[Task]:
    """Of `tasks_of`, those that could not be named before this plan was done."""
    others = {name: found for name, found in plans.items() if name != plan_step}
    before = {task.step for task in tasks_of(made, others)}
    return [task for task in tasks_of(made, plans) if task.step not in before]


def submit(ledger: Ledger, made: Job) -> Job:
    """Submit a job with the tasks that need no plan; it must be a new one."""
    if not ledger.submit(made, tasks_of(made, {})):
        raise ValueError(f"job {made.key} was submitted before")
    return made


def done_plans(ledger: Ledger, made: Job) -> dict[str, Chunks]:
    """The plans of a job that are done, with their chunks, as the ledger has them."""
    found: dict[str, Chunks] = {}
    for spec in made.steps:
        if spec.kind is not StepKind.PLAN:
            continue
        output = output_of(ledger, made.key, spec.name)
        if output is not None:
            found[spec.name] = chunks_in(output.result)
    return found


def chunks_in(result: str) -> list[str]:
    """The chunks in a plan's result."""
    return [canonical(chunk) for chunk in json.loads(result)]


def completion(
    ledger: Ledger, made: Job, lease: Lease, found: Chunks = (), *, files: int = 0
) -> Completion:
    """An honest completion of a lease. For a plan, `found` are its chunks."""
    spec = made.step(lease.step)
    result = result_of(lease)
    plans: dict[str, Chunks] = {}
    added: list[Task] = []
    if spec.kind is StepKind.PLAN:
        result = f"[{','.join(found)}]"
        plans = done_plans(ledger, made) | {spec.name: found}
        added = tasks_behind(made, spec.name, plans)
    attempt = f"{lease.task_id}-{lease.fence}"
    refs = tuple(
        FileRef(f"{n}.bin", f"{lease.key}/{attempt}/{n}.bin", n + 1, identity(attempt, str(n)))
        for n in range(files)
    )
    receipt = Receipt(lease.key, lease.step, spec.version, attempt, lease.fence, result, refs)
    return Completion(
        lease.task_id, lease.fence, result, receipt, tasks=added, plans=frozenset(plans)
    )


def result_of(lease: Lease) -> str:
    """A result that tells which attempt made it."""
    return canonical({"task": lease.task_id, "fence": lease.fence})


def states_of(ledger: Ledger, made: Job) -> dict[str, TaskState]:
    """Every task of a job by its display name."""
    return {row.name: row.state for row in every_task(ledger, made.key)}
