"""A chunk: a piece of the source whose fields are its identity, and the order of a plan."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PlainSerializer, WrapSerializer
from pydantic.fields import FieldInfo

from intermission.errors import Permanent
from intermission.model import canonical


class Chunk(BaseModel):
    """Subclass it with typed fields; equal fields mean the same piece of work.

    A plan is a set of chunks, not a sequence: chunks are put in the order of their fields,
    so a plan that comes out shuffled is the same plan.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def canonical(self) -> str:
        template = _template(type(self))
        if template is not None:
            return template % self.__dict__
        return canonical(self.model_dump(mode="json", by_alias=True, round_trip=True))


@cache
def _template(kind: type[Chunk]) -> str | None:
    """The canonical text of chunks that are plain integers, which most are, to be filled in.

    A plan may have a million of them, and this takes a fifth of the time.
    """
    decorators = kind.__pydantic_decorators__
    rewritten = decorators.field_serializers or decorators.model_serializers
    if (
        rewritten
        or kind.model_computed_fields
        or not all(map(_is_plain, kind.model_fields.values()))
    ):
        return None
    return "{" + ",".join(f'"{name}":%({name})d' for name in sorted(kind.model_fields)) + "}"


def _is_plain(field: FieldInfo) -> bool:
    """Whether a field is an integer that is written under its own name, as it is."""
    renamed = field.alias or field.serialization_alias
    changed = any(isinstance(note, PlainSerializer | WrapSerializer) for note in field.metadata)
    return field.annotation is int and not (renamed or changed or field.exclude)


def ordered(step: str, chunks: Iterable[Chunk]) -> list[str]:
    """The canonical texts of a plan's chunks, in field order. Refuses a duplicate.

    A million chunks mostly come in order, one by one: then none is kept but for its text.
    """
    texts: list[str] = []
    last: tuple[Any, ...] | None = None
    walk = iter(chunks)
    for chunk in walk:
        fields = tuple(chunk.__dict__.values())
        texts.append(chunk.canonical())
        if last is not None and not _follows(last, fields):
            if not isinstance(chunks, Sequence):
                chunks = [*map(type(chunk).model_validate_json, texts), *walk]
            return _sorted(step, chunks)
        last = fields
    return texts


def _follows(last: tuple[Any, ...], fields: tuple[Any, ...]) -> bool:
    try:
        return last < fields
    except TypeError:  # fields that do not compare, such as None beside a number
        return False


def _sorted(step: str, chunks: Sequence[Chunk]) -> list[str]:
    rows = [(tuple(chunk.__dict__.values()), chunk.canonical()) for chunk in chunks]
    try:
        rows.sort()
    except TypeError:
        rows.sort(key=lambda row: row[1])
    texts = [text for _, text in rows]
    for previous, text in pairwise(texts):
        if previous == text:
            raise Permanent(
                f"plan {step} returned the chunk {text} more than once.",
                remedy="A chunk's fields are its identity: return each piece of work once.",
            )
    return texts


def joined(texts: Iterable[str]) -> str:
    """Canonical texts as one JSON list, a chunk a line."""
    return "[" + ",\n".join(texts) + "]"


def parted(result: str) -> list[str]:
    """The canonical texts of the chunks in a plan's stored result."""
    if "\n" not in result:
        return [canonical(chunk) for chunk in json.loads(result)]
    return result[1:-1].split(",\n")  # no canonical text has a line break in it


@dataclass(frozen=True)
class ChunkFile:
    """The chunks in a plan's result that is a file, read each time somebody walks along them."""

    path: Path

    def __iter__(self) -> Iterator[str]:
        with self.path.open() as file:
            first = file.readline()
            if not first.endswith("\n"):
                yield from parted(first)
                return
            yield first.strip("[,\n")
            for line in file:  # a chunk a line, each an object in braces
                yield line.strip("],\n")
