"""`File` and `Files`: what in a step's result stands for the task's artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

from pydantic import Field, PlainSerializer, PlainValidator, SerializationInfo, ValidationInfo


class Kept(NamedTuple):
    """The folder of the attempt whose result is stored; None for a step that is not durable."""

    folder: Path | None


def _to_name(path: Path, info: SerializationInfo) -> str:
    if not isinstance(info.context, Kept):
        return str(path)
    folder = info.context.folder
    if folder is None:
        raise ValueError(f"a step with durable=False keeps no file, so {path.name} would be lost")
    if not path.is_relative_to(folder):
        raise ValueError(f"{path} was not made with ctx.out(): only those files are kept")
    if not path.is_file():
        raise ValueError(f"nothing was written to {path.name}")
    return path.relative_to(folder).as_posix()


def _to_path(value: Any, info: ValidationInfo) -> Path:
    files = cast("Mapping[str, Path] | None", info.context)
    return Path(value) if files is None else files[value]


File = Annotated[Path, PlainSerializer(_to_name), PlainValidator(_to_path)]
"""Annotate a result's field with it and fill it from `ctx.out(name)`; the next step gets a path
to the same bytes, verified, wherever it runs."""


def _as_nothing(_: Mapping[str, Path]) -> None:
    return None


def _all_files(_: Any, info: ValidationInfo) -> Mapping[str, Path]:
    return cast("Mapping[str, Path] | None", info.context) or {}


Files = Annotated[
    Mapping[str, Path],
    PlainSerializer(_as_nothing),
    PlainValidator(_all_files),
    Field(validate_default=True),
]
"""Annotate a result's field with it, and leave it empty: the next step finds there the paths of
all files of the task by name, each fetched and verified when it is asked for."""
