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
            yield Task(spec.name, 0, keys.at(spec, None, {}))


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
        self._alone: dict[str, str] = {}
        self._begun: dict[str, bytes] = {}
        self._same = {
            spec.name: [
                self._steps[edge.upstream] for edge in spec.edges if edge.kind is EdgeKind.SAME
            ]
            for spec in job.steps
        }

    def at(self, spec: StepSpec, chunk: str | None, known: dict[str, str]) -> str:
        """The key of a step's task on a chunk; `known` holds this chunk's keys so far."""
        if spec.plan is None:
            if spec.name not in self._alone:
                self._alone[spec.name] = self._key(spec, None, known)
            return self._alone[spec.name]
        if spec.name not in known:
            known[spec.name] = self._key(spec, chunk, known)
        return known[spec.name]

    def along(self, specs: Sequence[StepSpec], texts: Iterable[str]) -> list[Iterator[str]]:
        """For each of these mapped steps, its keys on one chunk after the other."""
        streams: dict[str, Iterator[str]] = {}

        def stream(spec: StepSpec) -> Iterator[str]:
            if spec.name not in streams:
                same = [stream(upstream) for upstream in self._same[spec.name]]
                streams[spec.name] = identities(self._beginning(spec), texts, *same)
            streams[spec.name], mine = tee(streams[spec.name])
            return mine

        return [stream(spec) for spec in specs]

    def _key(self, spec: StepSpec, chunk: str | None, known: dict[str, str]) -> str:
        same = [self.at(upstream, chunk, known) for upstream in self._same[spec.name]]
        return identity(chunk or "", *same, after=self._beginning(spec))

    def _beginning(self, spec: StepSpec) -> bytes:
        """What every task of a step has in its key alike."""
        if spec.name not in self._begun:
            self._begun[spec.name] = self._begin(spec)
        return self._begun[spec.name]

    def _begin(self, spec: StepSpec) -> bytes:
        upstream = {
            edge.param: self._whole(self._steps[edge.upstream], edge.kind)
            for edge in spec.edges
            if edge.kind is not EdgeKind.SAME
        }
        named = parts(self._job, spec, upstream)
        texts = (f"{name}={value}" for name, value in sorted(named.items()))
        return framed("task", spec.name, *texts)

    def _whole(self, spec: StepSpec, kind: EdgeKind) -> str:
        if kind is EdgeKind.ONE:
            return self.at(spec, None, {})
        assert spec.plan is not None
        return together(self.at(spec, chunk, {}) for chunk in self._plans[spec.plan])

    def upstream(self, spec: StepSpec, chunk: str | None) -> dict[str, str]:
        """By parameter, the key of what a task takes from upstream."""
        return {
            edge.param: self.at(self._steps[edge.upstream], chunk, {})
            if edge.kind is EdgeKind.SAME
            else self._whole(self._steps[edge.upstream], edge.kind)
            for edge in spec.edges
        }


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
