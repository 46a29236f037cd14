"""From a pipeline and a source to a job and its tasks. Pure: identities and nothing else.

A task's key is the hash of what it depends on: its pipeline, its step and the step's version,
the parameters the step declares, its chunk, the source's content where the step reads it, and
the keys of the tasks upstream. A position in a plan is never part of a key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, repeat, tee
from typing import Any

from intermission.model import (
    Edge,
    EdgeKind,
    Job,
    Source,
    StepKind,
    StepSpec,
    Task,
    canonical,
    framed,
    identities,
    identity,
    identity_of_all,
)
from intermission.pipeline import Pipeline

Plans = Mapping[str, Iterable[str]]
"""The chunks of every plan that is done, as canonical texts in order, by the plan's name. They may
be a million, so they are walked along as often as needed, and nobody keeps them."""


def make_job(pipeline: Pipeline, source: Source, params: Mapping[str, Any]) -> Job:
    """The job that this pipeline over this source with these parameters is."""
    bound = pipeline.bind(params, source)
    return Job(
        key=identity("job", pipeline.name, pipeline.graph, source.fingerprint, bound),
        pipeline=pipeline.name,
        graph=pipeline.graph,
        source=source,
        params=bound,
        steps=pipeline.specs,
        output=pipeline.output,
    )


def expand(job: Job, plans: Plans, new: str | None = None) -> Iterator[Task]:
    """The tasks that exist once these plans are done, and did not before `new` was.

    Without `new`, the tasks a job starts with. Chunk by chunk, so that the oldest-first
    claim order finishes chunk 0 before it starts chunk 100.
    """
    keys = Keys(job, plans)
    wanted = [
        spec
        for spec in job.steps
        if (needed := _required(job, spec)) <= plans.keys() and (new is None or new in needed)
    ]
    for plan, texts in plans.items():
        mapped = [spec for spec in wanted if spec.plan == plan]
        tasks = (
            map(Task, repeat(spec.name), count(), named, texts)
            for spec, named in zip(mapped, keys.along(mapped, texts), strict=True)
        )
        yield from chain.from_iterable(zip(*tasks, strict=True))
    for spec in wanted:
        if spec.plan is None:
            yield Task(spec.name, 0, keys.at(spec))


def _required(job: Job, spec: StepSpec) -> frozenset[str]:
    """The plans that must be done before this step's tasks can be named."""
    needed = frozenset[str]() if spec.plan is None else frozenset({spec.plan})
    if spec.plan is not None:
        needed |= _required(job, job.step(spec.plan))
    for edge in spec.edges:
        needed |= _required(job, job.step(edge.upstream))
    return needed


class Keys:
    """Task keys of one job, each computed from the ones upstream."""

    def __init__(self, job: Job, plans: Plans) -> None:
        self._job = job
        self._plans = plans
        self._steps = {spec.name: spec for spec in job.steps}
        self._begun: dict[str, bytes] = {}

    def at(self, spec: StepSpec, chunk: str | None = None) -> str:
        """The key of a step's task on a chunk, or of its only task."""
        (keys,) = self.along([spec], [chunk or ""])
        return next(keys)

    def along(self, specs: Sequence[StepSpec], texts: Iterable[str]) -> list[Iterator[str]]:
        """For each of these steps, its keys on one chunk after the other."""
        streams: dict[str, Iterator[str]] = {}

        def stream(spec: StepSpec) -> Iterator[str]:
            if spec.name not in streams:
                same = [
                    stream(self._steps[edge.upstream])
                    for edge in spec.edges
                    if edge.kind is EdgeKind.SAME
                ]
                streams[spec.name] = identities(self._beginning(spec), texts, *same)
            streams[spec.name], mine = tee(streams[spec.name])
            return mine

        return [stream(spec) for spec in specs]

    def _beginning(self, spec: StepSpec) -> bytes:
        """What every task of a step has in its key alike."""
        if spec.name not in self._begun:
            shared = (edge for edge in spec.edges if edge.kind is not EdgeKind.SAME)
            named = parts(self._job, spec, {edge.param: self._taken(edge) for edge in shared})
            texts = (f"{name}={value}" for name, value in sorted(named.items()))
            self._begun[spec.name] = framed("task", spec.name, *texts)
        return self._begun[spec.name]

    def _taken(self, edge: Edge, chunk: str | None = None) -> str:
        spec = self._steps[edge.upstream]
        if edge.kind is not EdgeKind.ALL:
            return self.at(spec, chunk if edge.kind is EdgeKind.SAME else None)
        assert spec.plan is not None
        (keys,) = self.along([spec], self._plans[spec.plan])
        return together(keys)

    def upstream(self, spec: StepSpec, chunk: str | None) -> dict[str, str]:
        """By parameter, the key of what a task takes from upstream."""
        return {edge.param: self._taken(edge, chunk) for edge in spec.edges}


def together(keys: Iterable[str]) -> str:
    """One key for all inputs of a fan-in."""
    return identity_of_all("all", keys)


def parts(job: Job, spec: StepSpec, upstream: Mapping[str, str]) -> dict[str, str]:
    """What a task's key is made of besides its chunk, named as a person would name it."""
    params = json.loads(job.params)
    named = {"version": str(spec.version)}
    named |= {f"parameter {name}": canonical(params[name]) for name in spec.params}
    named |= {f"input {param}": key for param, key in upstream.items()}
    if spec.reads_source:
        named["source content"] = job.source.fingerprint
    return named


def with_skipped(key: str, gaps: Sequence[str]) -> str:
    """The key of a fan-in that ran without some of its inputs: not the key of the whole."""
    return identity("gaps", key, *gaps) if gaps else key


def plan_steps(job: Job) -> list[StepSpec]:
    return [spec for spec in job.steps if spec.kind is StepKind.PLAN]
