"""A step: one versioned function, and what its signature says about its place in a graph."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError

from intermission.errors import Permanent, PipelineError
from intermission.model import Groups, Source, canonical
from intermission.pipeline.chunk import Chunk, joined, ordered
from intermission.pipeline.context import Context, is_output_name
from intermission.pipeline.file import Kept
from intermission.pipeline.hints import list_item, type_name, yielded_item


@dataclass(eq=False, repr=False)
class Step:
    """A function with a version. Call it like the function it wraps. See `step` for the options."""

    function: Callable[..., Any]
    version: int
    attempts: int
    timeout_s: float | None
    needs: str | None
    prefers: str | None
    concurrency: int | None
    retry_delays_s: tuple[float, ...] | None
    durable: bool
    on_error: Literal["fail", "skip"]
    publish: str | None
    batch_by: tuple[str, ...]
    groups: Groups | None
    entrypoints: bool

    def __post_init__(self) -> None:
        self.name = self.function.__name__
        self.skippable = self.on_error == "skip"
        for option in ("version", "attempts", "concurrency"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise PipelineError(f"step {self.name}: {option} must be at least 1, not {value}.")
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise PipelineError(
                f"step {self.name}: timeout_s must be above 0, not {self.timeout_s}."
            )
        if self.on_error not in ("fail", "skip"):
            raise PipelineError(
                f"step {self.name}: on_error must be 'fail' or 'skip', not {self.on_error!r}."
            )
        if self.publish is not None and not _is_template(self.publish):
            raise PipelineError(
                f"step {self.name}: {self.publish!r} cannot name published files.",
                remedy="Use a relative name that may hold {index}, {name}, {ext}, {stem} and "
                "{version}, such as 'chunks/chunk_{index:04d}.txt'.",
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<step {self.name} version {self.version}>"

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """Every parameter's type; a parameter without one is an error."""
        try:
            hints = typing.get_type_hints(self.function, include_extras=True)
        except NameError as e:
            raise PipelineError(
                f"step {self.name}: the type {e.name!r} in its signature is not defined.",
                remedy="Import or define it at the top of the module.",
            ) from e
        for name, parameter in inspect.signature(self.function).parameters.items():
            if parameter.kind not in (
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                inspect.Parameter.KEYWORD_ONLY,
            ):
                raise PipelineError(
                    f"step {self.name}: parameter {name!r} is *args, **kwargs or positional-only.",
                    remedy="A step says what it needs by named parameters.",
                )
            if name not in hints:
                raise PipelineError(
                    f"step {self.name}: parameter {name!r} has no type.",
                    remedy="Annotate it, so that its values can be checked and stored.",
                )
        return hints

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """Parameter types without the return type."""
        return {name: hint for name, hint in self.hints.items() if name != "return"}

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        signature = inspect.signature(self.function)
        return {
            name: parameter.default
            for name, parameter in signature.parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }

    @cached_property
    def returns(self) -> Any:
        """What steps downstream get: a list, where a plan yields its chunks one by one."""
        hint = self.hints.get("return", NoneType)
        chunk = yielded_item(hint)
        is_plan = isinstance(chunk, type) and issubclass(chunk, Chunk)
        return list[chunk] if is_plan else hint

    @cached_property
    def plans(self) -> type[Chunk] | None:
        """The chunk type, for a step that returns a list of chunks."""
        item = list_item(self.returns)
        return item if isinstance(item, type) and issubclass(item, Chunk) else None

    @cached_property
    def mapped(self) -> tuple[str, type[Chunk]] | None:
        """The parameter and chunk type a step is mapped over."""
        found = [
            (name, hint)
            for name, hint in self.parameters.items()
            if isinstance(hint, type) and issubclass(hint, Chunk)
        ]
        if len(found) > 1:
            raise PipelineError(
                f"step {self.name} is mapped over {len(found)} chunk types: "
                f"{', '.join(hint.__name__ for _, hint in found)}.",
                remedy="Map a step over one; plan a chunk type that holds both.",
            )
        return found[0] if found else None

    def parameter_of_type(self, wanted: type) -> str | None:
        return next((name for name, hint in self.parameters.items() if hint is wanted), None)

    @cached_property
    def context_param(self) -> str | None:
        return self.parameter_of_type(Context)

    @cached_property
    def source_param(self) -> str | None:
        return self.parameter_of_type(Source)

    @cached_property
    def _result(self) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(self.returns)
        except PydanticSchemaGenerationError as e:
            raise PipelineError(
                f"step {self.name}: its result type {type_name(self.returns)} "
                "cannot be stored as JSON.",
                remedy="Return a pydantic model, a dataclass or plain values; "
                "put bytes into a file with ctx.out().",
            ) from e

    def check_result_type(self) -> None:
        """Raise now, not in a slot, if results of this step cannot be stored."""
        _ = self._result

    def encode(self, result: Any, folder: Path | None) -> str:
        """A result as JSON text, checked against the step's return type."""
        if result is None and self.returns is NoneType:
            return "null"
        try:
            if self.plans is not None:
                return joined(ordered(self.name, self._chunks(result)))
            data = self._result.dump_json(
                result, context=Kept(folder), warnings="error", by_alias=True, round_trip=True
            )
            # None and NaN are written without a warning whatever the type says; a receipt that
            # cannot be read back would be worse than a failed attempt.
            self._result.validate_json(data)
        except ValueError as e:
            raise Permanent(
                f"step {self.name} returned {_brief(result)}, which is not "
                f"{type_name(self.returns)}: {e}",
                remedy="Return what the step's signature says.",
            ) from e
        return data.decode()

    def _chunks(self, result: Any) -> Iterable[Chunk]:
        if not isinstance(result, Iterator):
            return self._result.validate_python(result)
        (kind,) = typing.get_args(self.returns)
        return (chunk if type(chunk) is kind else kind.model_validate(chunk) for chunk in result)

    def decode(self, text: str, files: Mapping[str, Path]) -> Any:
        """A stored result as the value a downstream step gets."""
        return self._result.validate_json(text, context=files)


def _is_template(publish: str) -> bool:
    try:
        fields = {"index": 0, "name": "name", "stem": "stem", "ext": "ext"}
        return all(is_output_name(publish.format(version=v, **fields)) for v in ("", "v/"))
    except (LookupError, ValueError):
        return False


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def step(
    *,
    version: int,
    attempts: int = 3,
    timeout_s: float | None = None,
    needs: str | None = None,
    prefers: str | None = None,
    concurrency: int | None = None,
    retry_delays_s: tuple[float, ...] | None = None,
    durable: bool = True,
    on_error: Literal["fail", "skip"] = "fail",
    publish: str | None = None,
    batch_by: tuple[str, ...] = (),
    groups: Groups | None = None,
    entrypoints: bool = False,
) -> Callable[[Callable[..., Any]], Step]:
    """Make a function a step.

    `version`: raise it when the function's results change; finished tasks of the old version
    are then not reused. `attempts`: total runs before the task fails. `timeout_s`: per
    attempt. `needs`: only workers that offer this label run it. `prefers`: workers that do not
    offer this label run it once it has waited for a minute. `concurrency`: at most so many tasks
    of this step at a time. `retry_delays_s`: waits between attempts. `durable=False`:
    cheaper to repeat than to store, so no receipt is written. `on_error="skip"`: a chunk that
    fails for good is None in the fan-in instead of failing the job. `publish`: the name of
    the task's file among the outputs, such as `"chunks/chunk_{index:04d}.txt"`; the last
    steps of a pipeline publish their files as they are named. `batch_by`: fields of the chunk;
    tasks that agree in them run one after the other in one slot, where the first may prepare
    what the others need: `ctx.batch` is the chunks of those left. `groups`: the field of the
    chunk by which `status` tells tasks apart.

    Where `publish` begins with `{version}`, the first job of a source publishes at the top and
    every other job, with other parameters, in a folder of its own. `entrypoints=True`: the
    step's files are texts that lead to those; `{version}` in them stands for the job's folder.
    They are published at the top, each in one step, so that what was there works until then.
    """

    return partial(
        Step,
        version=version,
        attempts=attempts,
        timeout_s=timeout_s,
        needs=needs,
        prefers=prefers,
        concurrency=concurrency,
        retry_delays_s=retry_delays_s,
        durable=durable,
        on_error=on_error,
        publish=publish,
        batch_by=batch_by,
        groups=groups,
        entrypoints=entrypoints,
    )


def encode_parameter(hint: Any, value: Any) -> str:
    """A parameter value as canonical JSON text."""
    return canonical(
        TypeAdapter(hint).dump_python(value, mode="json", by_alias=True, round_trip=True)
    )
