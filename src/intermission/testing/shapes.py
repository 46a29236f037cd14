"""The kinds of jobs the stateful test and the simulator work on, picked by number."""

from __future__ import annotations

from collections.abc import Callable

from intermission.model import Job
from intermission.testing.jobs import (
    chain_job,
    fan_job,
    job,
    line_job,
    mapped,
    pair_job,
    plan,
    reduce,
    step,
)

CAN = "gpu"
"""What some steps of these jobs need."""


def two_stage_job(**options: object) -> Job:
    """A plan that needs the fan-in of another: cut, look, scenes, split, hear, join."""
    return job(
        plan("cut"),
        mapped("look", "cut", attempts=1),
        reduce("scenes", "look"),
        plan("split", one=["scenes"], attempts=2),
        mapped("hear", "split"),
        reduce("join", "hear", "look"),
        **options,  # type: ignore[arg-type]
    )


def mixed_job(**options: object) -> Job:
    """Gaps, limits, needs and a plan beside a step its chunks need: a pipeline like real ones."""
    return job(
        step("audio", attempts=2, needs=CAN),
        plan("cut"),
        mapped("sample", "cut", skippable=True, attempts=1),
        mapped("read", "cut", same=["sample"], one=["audio"], concurrency=2),
        mapped("level", "cut", every=["sample"]),
        reduce("index", "read"),
        step("page", one=["index", "audio"]),
        **options,  # type: ignore[arg-type]
    )


SHAPES: tuple[Callable[..., Job], ...] = (
    line_job,
    fan_job,
    lambda **options: fan_job(skippable=True, attempts=1, **options),
    chain_job,
    lambda **options: chain_job(skippable=True, **options),
    two_stage_job,
    mixed_job,
    pair_job,
    lambda **options: pair_job(skippable=True, **options),
)


def shaped(key: str, shape: int, priority: int = 0) -> Job:
    """A job of one of the shapes."""
    return SHAPES[shape % len(SHAPES)](key=key, priority=priority)
