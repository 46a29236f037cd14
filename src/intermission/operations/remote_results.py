"""The results that workers send, checked: a receipt says only what its step can have returned."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from intermission.errors import (
    IntermissionError,
)
from intermission.model import (
    StepKind,
    StepSpec,
    canonical,
)
from intermission.pipeline import Pipeline
from intermission.pipeline.chunk import joined, ordered, parted

CHECKED_AT_ONCE = 5_000


class Refused(IntermissionError):
    """A result that is not what its step returns, or files that were not uploaded."""


def checked_result(
    pipeline: Pipeline | None, spec: StepSpec, result: str, names: Iterable[str]
) -> str:
    """A result as it is stored. Raises `Refused` for one that the step cannot have returned.

    Without the pipeline's code here, which a newer worker may have alone, any JSON is taken.
    """
    if spec.kind is StepKind.PLAN:
        return joined(_chunks(pipeline, spec, result))
    try:
        if pipeline is None:
            json.loads(result)
        else:
            pipeline.steps[spec.name].decode(result, {name: Path(name) for name in names})
    except (ValueError, KeyError) as e:
        raise Refused(
            f"the result of {spec.name} is not what the step returns: {_why(e)}.",
            remedy="Return what the step's signature says, as JSON.",
        ) from e
    return result


def _why(e: Exception) -> str:
    """In a line, what is wrong."""
    if isinstance(e, ValidationError):
        return e.errors(include_url=False)[0]["msg"]
    if isinstance(e, KeyError):
        return f"it has no file {e}"
    return str(e)[:500]


def _chunks(pipeline: Pipeline | None, spec: StepSpec, result: str) -> list[str]:
    """The canonical texts of a plan's chunks, checked a part at a time: they may be a million."""
    kind = None if pipeline is None else pipeline.steps[spec.name].plans
    try:
        texts = parted(result) if "\n" in result else list(map(canonical, json.loads(result)))
        for at in range(0, len(texts), CHECKED_AT_ONCE):
            some = texts[at : at + CHECKED_AT_ONCE]
            found = [canonical(json.loads(text)) for text in some]
            if found != some or not all(text.startswith("{") for text in some):
                raise ValueError("expected objects with sorted keys and no spaces, one a line")
            if kind is not None and ordered(spec.name, map(kind.model_validate_json, some)) != some:
                raise ValueError("expected chunks in the order of their fields")
    except (ValueError, TypeError) as e:
        raise Refused(
            f"the result of {spec.name} is not a plan: {_why(e)}.",
            remedy="Return a list of the chunks, in the order of their fields.",
        ) from e
    if len(set(texts)) != len(texts):
        raise Refused(f"plan {spec.name} has a chunk more than once.")
    return texts
