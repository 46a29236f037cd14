"""A parameter of a pipeline as people see it: an option with a range, choices and a default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from intermission.pipeline.hints import description, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from intermission.pipeline.graph import Pipeline

_NUMBERS = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Parameter:
    """One parameter; `default` is `...` where it must be given."""

    name: str
    hint: Any
    default: Any

    @property
    def option(self) -> str:
        return option_of(self.name)

    @property
    def plain(self) -> Any:
        """Its type, without what is noted about it."""
        return get_args(self.hint)[0] if get_origin(self.hint) is Annotated else self.hint

    @property
    def is_flag(self) -> bool:
        return self.plain is bool

    @property
    def description(self) -> str:
        return description(self.hint)

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(map(str, get_args(self.plain))) if get_origin(self.plain) is Literal else ()

    @property
    def bounds(self) -> tuple[Any, Any]:
        """The smallest and the largest value that is allowed; None where there is no bound."""
        found: dict[str, Any] = {}
        for note in get_args(self.hint)[1:] if get_origin(self.hint) is Annotated else ():
            for one in note.metadata if isinstance(note, FieldInfo) else (note,):
                found |= {at: getattr(one, at) for at in ("ge", "le") if hasattr(one, at)}
        return found.get("ge"), found.get("le")

    @property
    def metavar(self) -> str:
        """What stands for its value in a usage line."""
        if self.choices:
            return "|".join(self.choices)
        return "N" if self.plain in _NUMBERS else self.name.rpartition("_")[2].upper()

    @property
    def range(self) -> str:
        """What its value must be, as the end of a sentence; empty where any text will do."""
        if self.choices:
            *others, last = self.choices
            return f"{', '.join(others)} or {last}" if others else last
        low, high = self.bounds
        if low is not None and high is not None:
            return f"between {low} and {high}"
        if low is not None or high is not None:
            return f"at least {low}" if high is None else f"at most {high}"
        if self.is_flag:
            return "true or false"
        return _NUMBERS.get(self.plain, "" if self.plain is str else type_name(self.hint))


def option_of(name: str) -> str:
    """A parameter's name as an option: `chunk_seconds` is `--chunk-seconds`."""
    return f"--{name.replace('_', '-')}"


def parameters_of(pipeline: Pipeline) -> Iterator[Parameter]:
    for name, (hint, default) in pipeline.parameters.items():
        yield Parameter(name, hint, default)
