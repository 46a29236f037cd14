"""The pipeline: steps put into a graph by their parameters, checked when it is made."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from intermission.errors import ParameterError, PipelineError
from intermission.model import (
    Edge,
    EdgeKind,
    Source,
    StepKind,
    StepSpec,
    canonical,
    code_of,
    identity,
)
from intermission.pipeline.context import is_output_name
from intermission.pipeline.hints import holds_set, list_item, type_name, without_none
from intermission.pipeline.parameter import Parameter, option_of
from intermission.pipeline.step import Step, encode_parameter

Resolve = Callable[..., Mapping[str, Any]]
Preview = Callable[..., Mapping[str, str]]


class Pipeline:
    """A named graph of steps with typed parameters.

    `output` names the folder beside the source in which its outputs appear (the pipeline's
    name unless given). `accepts` are the files it takes of a folder, as patterns such as `*.mp4`;
    all unless given. `resolve` takes the parameters of a new job, and its source (None until it
    is known) if it has a second parameter, and may give other values for some: what only the
    machine knows, such as which weights a model's name stands for.
    `preview` is called now and then while a job runs, with the results that are there so far: its
    parameters are named like those of a step, and of a mapped step's list None is what is not
    done yet. What it returns, texts by name, is published below the job's `{version}`.
    """

    def __init__(
        self,
        name: str,
        steps: Iterable[Step],
        *,
        output: str | None = None,
        accepts: Iterable[str] = (),
        resolve: Resolve | None = None,
        preview: Preview | None = None,
    ) -> None:
        self.name = name
        self.accepts = tuple(accepts)
        self.output = output or name
        self.preview = preview
        self._resolve = resolve
        for what in (self.name, self.output):
            if not is_output_name(what) or "/" in what:
                raise PipelineError(
                    f"a pipeline or its output folder cannot be called {what!r}.",
                    remedy="Use letters, digits, - and _.",
                )
        self.steps: dict[str, Step] = {}
        for step in steps:
            if not isinstance(step, Step):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise PipelineError(
                    f"pipeline {name}: {step!r} is not a step.",
                    remedy="Decorate the function with @step(version=1).",
                )
            if step.name in self.steps:
                raise PipelineError(f"pipeline {name}: two steps are called {step.name}.")
            self.steps[step.name] = step
        if not self.steps:
            raise PipelineError(f"pipeline {name} has no steps.")
        self.specs: tuple[StepSpec, ...] = self._specs()
        _ = self._plan_of, self.parameters, self.preview_inputs

    @cached_property
    def graph(self) -> str:
        """The identity of its steps and their edges."""
        return graph_of(self.specs)

    @property
    def code(self) -> str:
        """What a worker that has it says it can run, and a job of it asks for."""
        return code_of(self.name, self.graph)

    @property
    def makes_files(self) -> bool:
        """Whether any of its steps can: only with a context there is a place for them."""
        return any(step.context_param is not None for step in self.steps.values())

    def __repr__(self) -> str:
        return f"<pipeline {self.name}: {', '.join(self.steps)}>"

    @cached_property
    def _plan_of(self) -> Mapping[type, Step]:
        plans: dict[type, Step] = {}
        for step in self.steps.values():
            if step.plans is None:
                continue
            if step.mapped:
                raise self._wrong(step, "is a plan and is mapped over chunks itself", "Split it.")
            if holds_set(step.plans):
                raise self._unordered(step, f"plans {step.plans.__name__}, which holds a set")
            if step.plans in plans:
                raise self._wrong(
                    step,
                    f"and {plans[step.plans].name} both plan {step.plans.__name__}",
                    "Give each plan a chunk type of its own.",
                )
            plans[step.plans] = step
        return plans

    def _wrong(self, step: Step, what: str, remedy: str) -> PipelineError:
        return PipelineError(f"pipeline {self.name}: step {step.name} {what}.", remedy=remedy)

    def _unordered(self, step: Step, what: str) -> PipelineError:
        return self._wrong(
            step, what, "Use a list: a set is written in another order by every process."
        )

    def _specs(self) -> tuple[StepSpec, ...]:
        edges = {step.name: self._edges(step) for step in self.steps.values()}
        # Dicts, not sets: the order of the steps must be the same in every process.
        waits = {name: dict.fromkeys(e.upstream for e in found) for name, found in edges.items()}
        for step in self.steps.values():
            if step.mapped:
                waits[step.name][self._plan(step).name] = None
        try:
            order = list(TopologicalSorter(waits).static_order())
        except CycleError as e:
            raise PipelineError(
                f"pipeline {self.name}: the steps {' -> '.join(e.args[1])} wait for each other.",
                remedy="Remove one of these parameters.",
            ) from e
        used = {edge.upstream for found in edges.values() for edge in found}
        return tuple(self._spec(self.steps[name], edges[name], name not in used) for name in order)

    def _spec(self, step: Step, edges: tuple[Edge, ...], last: bool) -> StepSpec:
        step.check_result_type()
        if step.plans:
            kind = StepKind.PLAN
        elif step.mapped:
            kind = StepKind.MAP
        elif any(edge.kind is EdgeKind.ALL for edge in edges):
            kind = StepKind.REDUCE
        else:
            kind = StepKind.SINGLE
        if step.skippable and kind is not StepKind.MAP:
            raise self._wrong(
                step, 'has on_error="skip" but is not mapped', "Only a chunk can be skipped."
            )
        unknown = set(step.batch_by) - set(step.mapped[1].model_fields if step.mapped else ())
        if unknown:
            raise self._wrong(
                step,
                f"names {unknown.pop()!r} in batch_by, which is no field of its chunk",
                "Name fields of the chunk it is mapped over.",
            )
        if step.entrypoints and kind in (StepKind.MAP, StepKind.PLAN):
            raise self._wrong(
                step, "has entrypoints but is a map or a plan", "Only one task can be."
            )
        self._check_groups(step)
        publish = step.publish
        if publish is None and (last or step.entrypoints) and kind is not StepKind.PLAN:
            publish = f"{step.name}/{{index:05d}}/{{name}}" if step.mapped else "{name}"
        return StepSpec(
            name=step.name,
            version=step.version,
            kind=kind,
            edges=edges,
            params=tuple(sorted(self._own_parameters(step))),
            reads_source=step.source_param is not None,
            plan=self._plan(step).name if step.mapped else None,
            needs=step.needs,
            prefers=step.prefers,
            attempts=step.attempts,
            timeout_s=step.timeout_s,
            concurrency=step.concurrency,
            retry_delays_s=step.retry_delays_s,
            durable=step.durable,
            skippable=step.skippable,
            publish=publish,
            batch_by=step.batch_by,
            groups=step.groups,
            entrypoints=step.entrypoints,
        )

    def _check_groups(self, step: Step) -> None:
        groups = step.groups
        if groups is None:
            return
        fields = set(step.mapped[1].model_fields if step.mapped else ())
        if groups.by not in fields or groups.size not in fields | {""}:
            raise self._wrong(
                step,
                f"has groups by {groups.by!r} of the size {groups.size!r}, "
                "which are no fields of its chunk",
                "Name fields of the chunk it is mapped over.",
            )
        if groups.skipped and groups.skipped not in self.steps:
            raise self._wrong(
                step,
                f"says that {groups.skipped!r} knows which groups are skipped",
                "Name a step of the pipeline.",
            )

    def _plan(self, step: Step) -> Step:
        assert step.mapped
        _, chunk = step.mapped
        if chunk not in self._plan_of:
            raise self._wrong(
                step,
                f"takes a {chunk.__name__}, and no step of the pipeline plans any",
                f"Add a step that returns list[{chunk.__name__}].",
            )
        return self._plan_of[chunk]

    def _edges(self, step: Step) -> tuple[Edge, ...]:
        return tuple(
            Edge(name, name, self._edge_kind(step, name, hint, self.steps[name]))
            for name, hint in step.parameters.items()
            if name in self.steps
        )

    def _edge_kind(self, step: Step, param: str, hint: Any, upstream: Step) -> EdgeKind:
        if upstream is step:
            raise self._wrong(step, f"takes its own result as {param!r}", "Rename the parameter.")
        if upstream.mapped is None:
            if hint not in (upstream.returns, Any):
                raise self._mismatch(step, param, hint, upstream, type_name(upstream.returns))
            return EdgeKind.ONE
        together = step.mapped is not None and step.mapped[1] is upstream.mapped[1]
        if together and hint == upstream.returns:
            return EdgeKind.SAME
        item = list_item(hint)
        if item is not None and upstream.returns in (item, without_none(item)):
            if upstream.skippable and item == upstream.returns:
                raise self._wrong(
                    step,
                    f"takes every result of {upstream.name}, some of which may be skipped",
                    f"Declare {param} as a list of results or None.",
                )
            return EdgeKind.ALL
        wanted = type_name(upstream.returns)
        wanted = wanted if together else f"list[{wanted}]"
        raise self._mismatch(step, param, hint, upstream, wanted)

    def _mismatch(
        self, step: Step, param: str, hint: Any, upstream: Step, wanted: str
    ) -> PipelineError:
        return self._wrong(
            step,
            f"takes {param!r} as {type_name(hint)}, "
            f"but {upstream.name} returns {type_name(upstream.returns)}"
            + (" for each chunk" if upstream.mapped else ""),
            f"Declare it as {wanted}.",
        )

    def _own_parameters(self, step: Step) -> dict[str, Any]:
        special = {step.context_param, step.source_param, step.mapped and step.mapped[0]}
        return {
            name: hint
            for name, hint in step.parameters.items()
            if name not in special and name not in self.steps
        }

    @cached_property
    def parameters(self) -> Mapping[str, tuple[Any, Any]]:
        """The pipeline's parameters: type and default (`...` when it must be given)."""
        found: dict[str, tuple[Any, Any]] = {}
        for step in self.steps.values():
            for name, hint in self._own_parameters(step).items():
                entry = (hint, self._default(step, name, hint))
                if found.setdefault(name, entry) != entry:
                    raise self._wrong(
                        step,
                        f"declares the parameter {name!r} as {_declared(entry)}, "
                        f"another step as {_declared(found[name])}",
                        "Give it the same type and default everywhere.",
                    )
        return found

    @cached_property
    def preview_inputs(self) -> tuple[str, ...]:
        """The steps and parameters that the preview takes."""
        if self.preview is None:
            return ()
        named = tuple(inspect.signature(self.preview).parameters)
        unknown = set(named) - self.steps.keys() - self.parameters.keys()
        if unknown:
            raise PipelineError(
                f"pipeline {self.name}: its preview takes {min(unknown)!r}, which is neither a "
                "step nor a parameter.",
                remedy="Name its parameters like steps and parameters of the pipeline.",
            )
        return named

    def _default(self, step: Step, name: str, hint: Any) -> Any:
        """A parameter's default as a value of its type, so that 1 and 1.0 are the same float."""
        what = f"has the parameter {name!r} of type {type_name(hint)}"
        if holds_set(hint):
            raise self._unordered(step, f"{what}, which holds a set")
        try:
            adapter = TypeAdapter(hint)
        except PydanticSchemaGenerationError as e:
            raise self._wrong(
                step,
                f"{what}, which is neither a step of this pipeline nor a value",
                "Add the step, or use a type that can be written as JSON.",
            ) from e
        if name not in step.defaults:
            return ...
        try:
            return adapter.validate_python(step.defaults[name])
        except ValidationError as e:
            raise self._wrong(
                step,
                f"{what} with the default {step.defaults[name]!r}",
                "Make the default a value of that type.",
            ) from e

    def bind(self, values: Mapping[str, Any], source: Source | None = None) -> str:
        """All parameters as canonical JSON: given values checked, the rest from defaults.

        Strings, as they come from a command line, are parsed by the parameter's type.
        """
        for name in values:
            if name not in self.parameters:
                known = ", ".join(sorted(self.parameters)) or "none"
                raise ParameterError(
                    f"pipeline {self.name} has no parameter {name!r}.", remedy=f"It has: {known}."
                )
        bound: dict[str, Any] = {}
        for name, (hint, default) in self.parameters.items():
            value = self._parse(name, hint, values[name]) if name in values else default
            if value is ...:
                raise ParameterError(
                    f"pipeline {self.name} needs {option_of(name)}.",
                    remedy=f"Add {option_of(name)} and its value.",
                )
            bound[name] = value
        if self._resolve is not None:
            takes_source = len(inspect.signature(self._resolve).parameters) > 1
            bound |= self._resolve(dict(bound), *([source] if takes_source else []))
        return canonical(
            {
                name: json.loads(encode_parameter(self.parameters[name][0], bound[name]))
                for name in bound
            }
        )

    def unbind(self, params: str) -> dict[str, Any]:
        """Parameter values, typed as the steps declare them, from what `bind` made."""
        return {
            name: TypeAdapter(self.parameters[name][0]).validate_json(json.dumps(value))
            for name, value in json.loads(params).items()
        }

    def _parse(self, name: str, hint: Any, value: Any) -> Any:
        adapter = TypeAdapter(hint)
        try:
            if not isinstance(value, str):
                return adapter.validate_python(value)
            try:
                return adapter.validate_strings(value)
            except ValidationError as e:
                return _validate_json(adapter, value, e)
        except ValidationError as e:
            parameter = Parameter(name, hint, ...)
            wanted, problem = parameter.range, e.errors()[0]["msg"]
            raise ParameterError(
                f"{parameter.option} must be {wanted}, got {value}."
                if wanted
                else f"{parameter.option} can't be {value!r}: {problem[0].lower()}{problem[1:]}.",
                remedy=f"{problem}." if wanted == type_name(hint) else self._described,
            ) from e

    @property
    def _described(self) -> str:
        return f"`intermission run {self.name} --help` describes it."

    def explain(self) -> str:
        """The graph as text: one line a step, with what it waits for."""
        width = max(map(len, self.steps))
        lines = [f"pipeline {self.name}"]
        for spec in self.specs:
            waits = [_edge_text(edge) for edge in spec.edges]
            if spec.reads_source:
                waits.insert(0, "source")
            over = f" per {self.steps[spec.name].mapped[1].__name__}" if spec.plan else ""  # type: ignore[index]
            from_ = f" of {spec.plan}" if spec.plan else ""
            params = "".join(f" {p}" for p in spec.params)
            lines.append(
                f"  {spec.name:<{width}}  {spec.kind}{over}{from_}"
                + (f"  <- {', '.join(waits)}" if waits else "")
                + (f"  [{params.strip()}]" if params else "")
            )
        return "\n".join(lines)


def _declared(entry: tuple[Any, Any]) -> str:
    hint, default = entry
    return type_name(hint) + ("" if default is ... else f" = {default!r}")


def _validate_json(adapter: TypeAdapter[Any], text: str, as_plain: ValidationError) -> Any:
    try:
        return adapter.validate_json(text)
    except ValidationError as e:
        # Text that is no JSON at all was meant plainly; what is wrong with that is the news.
        raise as_plain if e.errors()[0]["type"] == "json_invalid" else e from None


def _edge_text(edge: Edge) -> str:
    return f"every {edge.upstream}" if edge.kind is EdgeKind.ALL else edge.upstream


def graph_of(steps: Iterable[StepSpec]) -> str:
    """The identity of a graph: everything in it that decides what a step is called with."""
    described = {
        spec.name: {
            "version": spec.version,
            "kind": spec.kind,
            "edges": sorted((edge.param, edge.upstream, edge.kind) for edge in spec.edges),
            "params": sorted(spec.params),
            "plan": spec.plan,
            "reads_source": spec.reads_source,
            "durable": spec.durable,
            "skippable": spec.skippable,
        }
        for spec in steps
    }
    return identity("graph", canonical(described))
