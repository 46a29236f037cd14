"""Pipelines: the graph that steps' parameters make, and what a wrong one says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from intermission import Chunk, Context, Pipeline, Source, step
from intermission.errors import ParameterError, PipelineError
from intermission.model import Edge, EdgeKind, StepKind
from intermission.pipeline import Step


class Audio(BaseModel):
    rate_hz: int


class Words(BaseModel):
    text: str


class Span(Chunk):
    start_ms: int
    end_ms: int


class Frame(Chunk):
    at_ms: int


class Opaque:
    """No value that JSON knows."""


class Tagged(Chunk):
    tags: frozenset[str]


@step(version=1)
def audio(ctx: Context, source: Source) -> Audio: ...


@step(version=1)
def spans(ctx: Context, audio: Audio, every_s: int = 60) -> list[Span]: ...


@step(version=3, attempts=4, timeout_s=600, needs="gpu")
def hear(ctx: Context, audio: Audio, span: Span, model: str = "tiny.en") -> Words: ...


@step(version=1)
def join(ctx: Context, source: Source, hear: list[Words]) -> str: ...


transcribe = Pipeline("transcribe", [audio, spans, hear, join])


def named(name: str, function: Callable[..., Any], **options: Any) -> Step:
    """A step under a name of its own, so that one case can hold several variants."""
    function.__name__ = name
    return step(version=1, **options)(function)


def spec(pipeline: Pipeline, name: str) -> Any:
    return next(found for found in pipeline.specs if found.name == name)


def test_kinds_and_edges() -> None:
    assert {s.name: s.kind for s in transcribe.specs} == {
        "audio": StepKind.SINGLE,
        "spans": StepKind.PLAN,
        "hear": StepKind.MAP,
        "join": StepKind.REDUCE,
    }
    assert spec(transcribe, "audio").edges == ()
    assert spec(transcribe, "spans").edges == (Edge("audio", "audio", EdgeKind.ONE),)
    assert spec(transcribe, "hear").edges == (Edge("audio", "audio", EdgeKind.ONE),)
    assert spec(transcribe, "join").edges == (Edge("hear", "hear", EdgeKind.ALL),)
    assert spec(transcribe, "hear").plan == "spans"
    assert [s.reads_source for s in transcribe.specs] == [True, False, False, True]
    assert spec(transcribe, "spans").params == ("every_s",)
    assert spec(transcribe, "hear").params == ("model",)


def test_options_reach_the_spec() -> None:
    found = spec(transcribe, "hear")
    assert (found.version, found.attempts, found.timeout_s, found.needs) == (3, 4, 600, "gpu")


def test_only_the_last_step_publishes_by_default() -> None:
    assert [s.publish for s in transcribe.specs] == [None, None, None, "{name}"]


def test_a_last_step_that_is_mapped_publishes_by_chunk() -> None:
    @step(version=1)
    def cut(source: Source) -> list[Span]: ...

    @step(version=1)
    def clip(ctx: Context, span: Span) -> None: ...

    assert Pipeline("clips", [cut, clip]).specs[-1].publish == "clip/{index:05d}/{name}"


@pytest.mark.parametrize("publish", ["../up", "/root", "{nobody}", "{index!}", "-x", ""])
def test_a_step_cannot_publish_under_a_name_that_leads_elsewhere(publish: str) -> None:
    with pytest.raises(PipelineError, match=r"clip: .* cannot name published files"):

        @step(version=1, publish=publish)
        def clip(ctx: Context, span: Span) -> None: ...


@pytest.mark.parametrize("name", ["", "..", "a/b", "-rf"])
def test_a_pipeline_needs_a_name_that_can_be_a_folder(name: str) -> None:
    with pytest.raises(PipelineError, match="cannot be called"):
        Pipeline(name, [join])


def test_a_map_over_the_same_chunks_waits_for_its_own_chunk() -> None:
    @step(version=1, on_error="skip")
    def score(span: Span, hear: Words) -> float: ...

    @step(version=1)
    def best(score: list[float | None], hear: list[Words], spans: list[Span]) -> float: ...

    chained = Pipeline("chained", [audio, spans, hear, score, best])
    assert spec(chained, "score").edges == (Edge("hear", "hear", EdgeKind.SAME),)
    assert spec(chained, "score").skippable
    assert [e.kind for e in spec(chained, "best").edges] == [
        EdgeKind.ALL,
        EdgeKind.ALL,
        EdgeKind.ONE,
    ]


def test_a_map_may_wait_for_every_chunk_of_another_plan() -> None:
    @step(version=1)
    def frames(hear: list[Words]) -> list[Frame]: ...

    @step(version=1)
    def draw(frame: Frame, hear: list[Words]) -> int: ...

    two = Pipeline("two", [draw, frames, hear, spans, audio])
    assert spec(two, "draw").kind is StepKind.MAP
    assert spec(two, "draw").plan == "frames"
    assert [s.name for s in two.specs].index("frames") > [s.name for s in two.specs].index("hear")


def test_the_order_of_steps_is_the_same_in_every_process() -> None:
    code = """
from intermission import Pipeline, step
def made(name):
    def f() -> int: ...
    f.__name__ = name
    return step(version=1)(f)
@step(version=1)
def join(a: int, b: int, c: int, d: int) -> int: ...
print([s.name for s in Pipeline("p", [join, *map(made, "abcd")]).specs])
"""
    orders = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
            timeout=30,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(orders) == 1


def test_explain_draws_the_graph() -> None:
    assert transcribe.explain().splitlines() == [
        "pipeline transcribe",
        "  audio  single  <- source",
        "  spans  plan  <- audio  [every_s]",
        "  hear   map per Span of spans  <- audio  [model]",
        "  join   reduce  <- source, every hear",
    ]
    assert repr(transcribe) == "<pipeline transcribe: audio, spans, hear, join>"
    assert transcribe.output == "transcribe"
    assert Pipeline("t", [audio], output="transcripts").output == "transcripts"


def test_a_step_is_still_its_function() -> None:
    @step(version=2)
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8
    assert repr(double) == "<step double version 2>"


def takes_mapped_singly(audio: Audio, hear: Words) -> int: ...
def takes_wrong_type(audio: int) -> int: ...
def takes_wrong_list(hear: list[int]) -> int: ...
def takes_itself(loop: int) -> int: ...
def takes_frame(frame: Frame) -> int: ...
def takes_two_chunks(frame: Frame, span: Span) -> int: ...
def plans_spans(audio: Audio) -> list[Span]: ...
def plans_from_a_chunk(span: Span) -> list[Frame]: ...
def plans_sets() -> list[Tagged]: ...
def takes_opaque(hook: Path, odd: Opaque) -> int: ...
def takes_set(tags: dict[str, set[int]]) -> int: ...
def wrong_default(every_s: int = None) -> int: ...  # type: ignore[assignment]  # noqa: RUF013
def other_default(every_s: int = 30) -> int: ...
def other_type(every_s: float = 60) -> int: ...
def untyped(audio) -> int: ...
def starred(*audio: int) -> int: ...
def positional(audio: Audio, /) -> int: ...
def undefined(audio: Nowhere) -> int: ...  # type: ignore[name-defined]  # noqa: F821
def unstorable() -> list[Opaque]: ...
def waits_for_b(b: int) -> int: ...
def waits_for_a(a: int) -> int: ...
def takes_gaps_blindly(maybe: list[Words]) -> int: ...
def maybe(span: Span) -> Words: ...
def one_skip(audio: Audio) -> int: ...


GRAPH_ERRORS: list[tuple[list[Any], list[str]]] = [
    ([], ["pipeline bad has no steps"]),
    ([len], ["<built-in function len> is not a step", "@step(version=1)"]),
    ([audio, audio], ["two steps are called audio"]),
    (
        [audio, spans, hear, named("x", takes_mapped_singly)],
        ["step x takes 'hear' as Words, but hear returns Words for each chunk", "list[Words]"],
    ),
    (
        [audio, named("x", takes_wrong_type)],
        ["step x takes 'audio' as int, but audio returns Audio.", "Declare it as Audio."],
    ),
    (
        [audio, spans, hear, named("x", takes_wrong_list)],
        ["step x takes 'hear' as list[int]", "Declare it as list[Words]."],
    ),
    ([named("loop", takes_itself)], ["step loop takes its own result as 'loop'"]),
    ([named("x", takes_frame)], ["step x takes a Frame", "returns list[Frame]"]),
    ([named("x", takes_two_chunks)], ["step x is mapped over 2 chunk types: Frame, Span"]),
    ([audio, spans, named("x", plans_spans)], ["step x and spans both plan Span"]),
    (
        [audio, spans, named("x", plans_from_a_chunk), named("y", takes_frame)],
        ["step x is a plan and is mapped over chunks itself"],
    ),
    ([named("x", plans_sets), named("y", lambda: 1)], ["step x plans Tagged", "Use a list"]),
    (
        [named("x", takes_opaque)],
        [
            "step x has the parameter 'odd' of type Opaque",
            "neither a step of this pipeline nor a value",
        ],
    ),
    ([named("x", takes_set)], ["step x has the parameter 'tags'", "holds a set", "Use a list"]),
    (
        [named("x", wrong_default)],
        ["step x has the parameter 'every_s' of type int with the default None"],
    ),
    (
        [audio, spans, named("x", other_default)],
        ["step x declares the parameter 'every_s' as int = 30, another step as int = 60"],
    ),
    (
        [audio, spans, named("x", other_type)],
        ["step x declares the parameter 'every_s' as float = 60.0, another step as int = 60"],
    ),
    ([named("x", untyped)], ["step x: parameter 'audio' has no type", "Annotate it"]),
    ([named("x", starred)], ["step x: parameter 'audio' is *args", "named parameters"]),
    ([named("x", positional)], ["step x: parameter 'audio'", "positional-only"]),
    ([named("x", undefined)], ["step x: the type 'Nowhere' in its signature is not defined"]),
    (
        [named("x", unstorable)],
        ["step x: its result type list[Opaque]", "cannot be stored as JSON"],
    ),
    (
        [named("a", waits_for_b), named("b", waits_for_a)],
        ["the steps ", "a -> ", "b", "wait for each other"],
    ),
    (
        [audio, spans, named("maybe", maybe, on_error="skip"), named("x", takes_gaps_blindly)],
        ["step x takes every result of maybe, some of which may be skipped", "Declare maybe"],
    ),
    (
        [audio, named("x", one_skip, on_error="skip")],
        ['step x has on_error="skip"', "not mapped"],
    ),
]


@pytest.mark.parametrize(
    ("steps", "parts"),
    GRAPH_ERRORS,
    ids=lambda value: value[-1][:50] if value and isinstance(value[-1], str) else "",
)
def test_a_wrong_graph_names_the_function_and_the_parameter(
    steps: list[Any], parts: list[str]
) -> None:
    with pytest.raises(PipelineError) as caught:
        Pipeline("bad", steps)
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"version": 0}, "step f: version must be at least 1, not 0"),
        ({"attempts": 0}, "step f: attempts must be at least 1, not 0"),
        ({"concurrency": 0}, "step f: concurrency must be at least 1, not 0"),
        ({"timeout_s": 0}, "step f: timeout_s must be above 0, not 0"),
        ({"on_error": "gaps"}, "step f: on_error must be 'fail' or 'skip', not 'gaps'"),
    ],
)
def test_a_wrong_option_names_the_function_and_the_option(
    options: dict[str, Any], part: str
) -> None:
    def f() -> None: ...

    with pytest.raises(PipelineError, match=part):
        step(**{"version": 1, **options})(f)


class Box(BaseModel):
    width: int


def wants_much(
    needed: int,
    ratio: float = 1,
    names: list[str] | None = None,
    on: bool = False,
    box: Box = Box(width=1),  # noqa: B008
) -> int: ...


MUCH = Pipeline("much", [named("wants", wants_much)])


def test_bind_fills_in_defaults() -> None:
    bound = '{"box":{"width":1},"names":null,"needed":3,"on":false,"ratio":1.0}'
    assert MUCH.bind({"needed": 3}) == bound


def test_bind_makes_one_text_of_one_value_however_it_was_given() -> None:
    texts = {"needed": "3", "ratio": "1", "names": '["é"]', "on": "true", "box": '{"width": 2}'}
    values = {"box": Box(width=2), "names": ["é"], "needed": 3, "ratio": 1, "on": True}
    assert MUCH.bind(texts) == MUCH.bind(values)
    assert MUCH.bind({"needed": 3, "ratio": "1"}) == MUCH.bind({"needed": 3})


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({}, ["pipeline much needs --needed"]),
        ({"wanted": 1}, ["pipeline much has no parameter 'wanted'", "box, names, needed, on"]),
        ({"needed": "three"}, ["--needed must be a whole number, got three"]),
        ({"needed": 2.5}, ["--needed must be a whole number, got 2.5"]),
        ({"needed": "1", "names": "[1]"}, ["must be list[str] | None, got [1]", "valid string"]),
    ],
)
def test_a_wrong_parameter(given: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ParameterError) as caught:
        MUCH.bind(given)
    for part in parts:
        assert part in str(caught.value)


def test_a_pipeline_without_parameters_says_so() -> None:
    with pytest.raises(ParameterError, match="It has: none"):
        Pipeline("p", [audio]).bind({"x": 1})
