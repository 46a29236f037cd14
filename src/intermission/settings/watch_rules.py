"""The setting `watches`: what a table of it may say, and what is said of a wrong one."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from intermission.errors import UsageError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def split(value: Any) -> Any:
    """A list, as a variable or a flag can hold it: with commas."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


def from_json(value: Any) -> Any:
    """Tables, as a variable can hold them."""
    return json.loads(value) if isinstance(value, str) else value


class WatchedPlace(BaseModel):
    """One of the `watches`. A description says what a value must be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    place: str = Field(min_length=1, description="a folder or URL")
    pipeline: str = Field(
        min_length=1, description="an installed pipeline, module:name or path/to/file.py:name"
    )
    params: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="parameters of the pipeline, by name"
    )
    include: Annotated[tuple[str, ...], BeforeValidator(split)] = Field(
        default=(), description="only files like these, such as *.mp4"
    )
    priority: Annotated[int, Field(strict=True)] = Field(
        default=0, description="jobs with a higher number go first"
    )
    every_s: Annotated[float, Field(ge=0.1, allow_inf_nan=False)] | None = Field(
        default=None, description="seconds between two looks, 10 unless set, 300 with a queue"
    )
    cron: str | None = Field(
        default=None, description="when to look, instead: '0 2 * * *' is every day at two"
    )
    timezone: str | None = Field(
        default=None, description="of the cron expression, such as Europe/Berlin"
    )
    queue: str | None = Field(
        default=None,
        min_length=1,
        description="the URL of an SQS queue that gets the events of a bucket",
    )


def wrong_table(
    model: type[BaseModel], setting: str, first: ErrorDetails, source: str
) -> UsageError:
    """What to tell about the first error in a table of a setting, by its number."""
    number, name = first["loc"][1:3]
    where = f"{source}: {setting}, number {int(number) + 1}"
    fields = model.model_fields
    if first["type"] == "extra_forbidden":
        close = get_close_matches(str(name), fields, n=1)
        return UsageError(
            f"{where}: there is no {name!r}.",
            remedy=f"Did you mean {close[0]}?" if close else f"It has: {', '.join(fields)}.",
        )
    expected = f"Expected: {fields[str(name)].description}."
    if first["type"] == "missing":
        return UsageError(f"{where}: {name} is missing.", remedy=expected)
    return UsageError(
        f"{where}: {name} cannot be {first['input']!r}: {first['msg']}.", remedy=expected
    )
