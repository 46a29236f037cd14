"""Questions about type hints: what is inside them, and how to say them to a person."""

from __future__ import annotations

import collections.abc
import re
import typing
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel

_MODULE = re.compile(r"(?:[\w<>]+\.)+")


def without_none(hint: Any) -> Any:
    """The type inside `T | None`, or the type itself."""
    if get_origin(hint) in (typing.Union, UnionType) and NoneType in get_args(hint):
        rest = tuple(arg for arg in get_args(hint) if arg is not NoneType)
        return rest[0] if len(rest) == 1 else typing.Union[rest]  # noqa: UP007
    return hint


def list_item(hint: Any) -> Any:
    """X for `list[X]`, else None."""
    return get_args(hint)[0] if get_origin(hint) is list and get_args(hint) else None


def yielded_item(hint: Any) -> Any:
    """X for `Iterator[X]` and `Iterable[X]`, else None."""
    origins = (collections.abc.Iterator, collections.abc.Iterable)
    return get_args(hint)[0] if get_origin(hint) in origins and get_args(hint) else None


def type_name(hint: Any) -> str:
    """A type as its author wrote it, without the modules it comes from."""
    if hint is NoneType:
        return "None"
    if get_origin(hint) is Annotated:
        return type_name(get_args(hint)[0])
    if get_origin(hint) is None and isinstance(hint, type):
        return hint.__name__
    return _MODULE.sub("", str(hint))


def description(hint: Any) -> str:
    """What a parameter's `Field(description=...)` says, or nothing."""
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((note.description for note in notes if getattr(note, "description", None)), "")


def holds_set(hint: Any) -> bool:
    """Whether values of this type may contain a set, whose text differs from run to run."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return any(holds_set(field.annotation) for field in hint.model_fields.values())
    if get_origin(hint) or get_args(hint):
        return get_origin(hint) in (set, frozenset) or any(map(holds_set, get_args(hint)))
    return hint in (set, frozenset)
