"""The results that workers send, checked: a receipt says only what its step can have returned."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from intermission.errors import IntermissionError
from intermission.model import StepKind, StepSpec, canonical
from intermission.pipeline import Pipeline
from intermission.pipeline.chunk import Chunk, joined, ordered, parted

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
        texts = _chunks(spec, result)
        check_plan(pipeline, spec, texts)
        return joined(texts)
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


def _chunks(spec: StepSpec, result: str) -> list[str]:
    try:
        return parted(result)
    except (ValueError, TypeError) as e:
        raise Refused(
            f"the result of {spec.name} is not a plan: {_why(e)}.",
            remedy="Return a list of the chunks, in the order of their fields.",
        ) from e


def check_plan(pipeline: Pipeline | None, spec: StepSpec, texts: Iterable[str]) -> None:
    """Check the chunks of a plan, a part at a time: they may be a million. Raises `Refused`."""
    kind = None if pipeline is None else pipeline.steps[spec.name].plans
    seen: set[int] = set()
    walk, last = iter(texts), list[str]()
    try:
        while some := list(islice(walk, CHECKED_AT_ONCE)):
            found = [canonical(json.loads(text)) for text in some]
            if found != some or not all(text.startswith("{") for text in some):
                raise ValueError("expected objects with sorted keys and no spaces, one a line")
            if kind is None:
                count = len(seen) + len(some)
                seen.update(map(hash, some))
                is_twice = len(seen) != count
            else:
                part = [*last, *some]
                is_twice = len(set(part)) != len(part)
                if not is_twice and ordered(spec.name, _parsed(kind, part)) != part:
                    raise ValueError("expected chunks in the order of their fields")
            if is_twice:
                raise Refused(f"plan {spec.name} has a chunk more than once.")
            last = some[-1:]
    except (ValueError, TypeError) as e:
        raise Refused(
            f"the result of {spec.name} is not a plan: {_why(e)}.",
            remedy="Return a list of the chunks, in the order of their fields.",
        ) from e


def _parsed(kind: type[Chunk], texts: Iterable[str]) -> list[Chunk]:
    return [kind.model_validate_json(text) for text in texts]
