"""Identities: a task's key changes with what the task depends on, and with nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from intermission import Chunk, Context, Pipeline, Source, step
from intermission.engine.planning import (
    Keys,
    expand,
    make_job,
    parts,
    plan_steps,
    together,
    with_skipped,
)
from intermission.model import Job, Task, canonical
from intermission.pipeline.chunk import parted

SOURCE = Source("file:///talk.mp4", "f" * 64, 10, "v1")


class Span(Chunk):
    start: int


class Scene(Chunk):
    no: int


@step(version=1)
def audio(ctx: Context, source: Source, rate: int = 16) -> int:
    return rate


@step(version=1)
def spans(audio: int, every_s: int = 60) -> list[Span]:
    return [Span(start=0)]


@step(version=1)
def hear(span: Span, model: str = "tiny") -> str:
    return model


@step(version=1)
def tidy(span: Span, hear: str) -> str:
    return hear


@step(version=1)
def scenes(tidy: list[str]) -> list[Scene]:
    return [Scene(no=0)]


@step(version=1)
def draw(scene: Scene, look: str = "plain") -> str:
    return look


@step(version=1)
def page(tidy: list[str], draw: list[str]) -> str:
    return ""


TALK = Pipeline("talk", [audio, spans, hear, tidy, scenes, draw, page])
PLANS = {
    "spans": [canonical({"start": n}) for n in (0, 60, 120)],
    "scenes": [canonical({"no": n}) for n in (0, 1)],
}


def made(source: Source = SOURCE, **params: object) -> Job:
    return make_job(TALK, source, params)


def named(job: Job, plans: dict[str, list[str]] = PLANS) -> dict[str, str]:
    return {f"{task.step}[{task.index}]": task.key for task in expand(job, plans)}


def changed(one: dict[str, str], other: dict[str, str]) -> set[str]:
    """The steps of which at least one task has another key."""
    assert one.keys() == other.keys()
    return {name.partition("[")[0] for name in one if one[name] != other[name]}


ALL = {"audio", "spans", "hear", "tidy", "scenes", "draw", "page"}


def test_a_job_is_its_pipeline_source_content_and_parameters() -> None:
    assert made().key == made().key == made(model="tiny").key
    assert made(model="base").key != made().key
    assert made(replace(SOURCE, fingerprint="e" * 64)).key != made().key
    # Where a file lies and when it was written are no part of what it is.
    assert made(replace(SOURCE, uri="file:///moved.mp4", version="v2")).key == made().key


@pytest.mark.parametrize(
    ("params", "affected"),
    [
        ({"rate": 8}, ALL - {"hear", "tidy", "scenes", "draw", "page"}),
        ({"every_s": 30}, {"spans"}),
        ({"model": "base"}, {"hear", "tidy", "scenes", "page"}),
        ({"look": "bold"}, {"draw", "page"}),
    ],
)
def test_a_parameter_changes_what_declares_it_and_what_is_downstream(
    params: dict[str, Any], affected: set[str]
) -> None:
    assert changed(named(made()), named(made(**params))) == affected


def test_the_content_of_the_source_changes_what_reads_it_and_what_is_downstream() -> None:
    other = made(replace(SOURCE, fingerprint="e" * 64))
    assert changed(named(made()), named(other)) == {"audio", "spans"}


def test_a_version_changes_the_step_and_what_is_downstream() -> None:
    job = made()
    steps = tuple(replace(s, version=2) if s.name == "tidy" else s for s in job.steps)
    assert changed(named(job), named(replace(job, steps=steps))) == {"tidy", "scenes", "page"}


def test_a_chunk_is_named_by_its_fields_and_not_by_its_place() -> None:
    before = list(expand(made(), PLANS))
    shuffled = {**PLANS, "spans": PLANS["spans"][::-1]}
    after = list(expand(made(), shuffled))
    for name in ("hear", "tidy"):
        keys = {task.chunk: task.key for task in before if task.step == name}
        assert {task.chunk: task.key for task in after if task.step == name} == keys


def test_another_chunk_leaves_the_others_as_they_are() -> None:
    more = {**PLANS, "spans": [*PLANS["spans"], canonical({"start": 180})]}
    before, after = named(made()), named(made(), more)
    assert {name for name in before if before[name] != after[name]} == {"scenes[0]", "page[0]"}


def test_tasks_come_chunk_by_chunk_and_singles_last() -> None:
    names = [f"{task.step}[{task.index}]" for task in expand(made(), PLANS)]
    mapped = [f"{name}[{n}]" for n in range(3) for name in ("hear", "tidy")]
    assert names == [*mapped, "draw[0]", "draw[1]", "audio[0]", "spans[0]", "scenes[0]", "page[0]"]


def test_a_task_exists_once_every_plan_above_it_is_done() -> None:
    spans_only = {"spans": PLANS["spans"]}
    assert {task.step for task in expand(made(), {})} == {"audio", "spans"}
    found = {task.step for task in expand(made(), spans_only)}
    assert found == {"audio", "spans", "hear", "tidy", "scenes"}
    assert {task.step for task in expand(made(), spans_only, "spans")} == found - {"audio", "spans"}
    assert {task.step for task in expand(made(), PLANS, "scenes")} == {"draw", "page"}


def test_an_empty_plan_leaves_only_the_fan_in() -> None:
    found = list(expand(made(), {"spans": []}, "spans"))
    assert [(task.step, task.chunk) for task in found] == [("scenes", None)]


def test_keys_upstream_are_the_keys_of_the_tasks_themselves() -> None:
    job = made()
    keys = Keys(job, PLANS)
    by_name = named(job)
    assert keys.upstream(job.step("spans"), None) == {"audio": by_name["audio[0]"]}
    assert keys.upstream(job.step("tidy"), PLANS["spans"][1]) == {"hear": by_name["hear[1]"]}
    whole = together(by_name[f"tidy[{n}]"] for n in range(3))
    assert keys.upstream(job.step("page"), None)["tidy"] == whole


def test_parts_tell_what_a_key_is_made_of() -> None:
    job = made(model="base")
    assert parts(job, job.step("audio"), {}) == {
        "version": "1",
        "parameter rate": "16",
        "source content": SOURCE.fingerprint,
    }
    assert parts(job, job.step("hear"), {"audio": "k"}) == {
        "version": "1",
        "parameter model": '"base"',
        "input audio": "k",
    }


def test_a_fan_in_with_gaps_is_another_task() -> None:
    assert with_skipped("key", []) == "key"
    keys = {with_skipped("key", gaps) for gaps in (["a:0"], ["a:1"], ["a:0", "a:1"], ["b:0"])}
    assert len(keys) == 4
    assert "key" not in keys


def test_chunks_are_canonical_whatever_the_result_looked_like() -> None:
    assert parted('[{"b": 1, "a": 2}]') == ['{"a":2,"b":1}']
    assert parted("[]") == []


def test_plans_are_found_in_the_order_of_the_graph() -> None:
    assert [spec.name for spec in plan_steps(made())] == ["spans", "scenes"]


def test_keys_tell_tasks_apart() -> None:
    found: list[Task] = list(expand(made(), PLANS))
    assert len({task.key for task in found}) == len(found)
