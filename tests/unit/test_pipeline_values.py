"""What steps return and are given: chunks, files, results as JSON, and the context."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, Field, PlainSerializer, ValidationError, computed_field

from intermission import Chunk, Context, File, Permanent, step
from intermission.errors import UsageError
from intermission.model import canonical
from intermission.pipeline import Deferred, Step
from intermission.pipeline.chunk import parted


class Span(Chunk):
    start_ms: int
    end_ms: int | None = None


class Title(Chunk):
    text: str


class Clip(BaseModel):
    video: File
    poster: File | None = None
    title: str = ""


class Level(Chunk):
    """A chunk with everything that a naive dump would not read back."""

    value: float = Field(alias="from")

    @computed_field
    @property
    def doubled(self) -> float:
        return 2 * self.value


@dataclass
class Point:
    x: int


@step(version=1)
def titled() -> list[Title]:
    return []


@step(version=1)
def spans() -> list[Span]: ...


@step(version=1)
def clip() -> Clip: ...


@step(version=1)
def clips() -> list[Clip]: ...


@step(version=1)
def nothing() -> None: ...


@step(version=1)
def point() -> Point: ...


@step(version=1)
def number() -> int: ...


@step(version=1)
def level() -> Level: ...


@step(version=1)
def levels() -> list[Level]: ...


def test_a_shuffled_plan_is_the_same_plan(tmp_path: Path) -> None:
    plan = [Span(start_ms=start, end_ms=end) for start in (0, 5, 10, 100) for end in (7, 20)]
    texts = set()
    for seed in range(20):
        random.Random(seed).shuffle(plan)
        texts.add(spans.encode(plan, tmp_path))
    (text,) = texts
    assert [(c.start_ms, c.end_ms) for c in spans.decode(text, {})] == [
        (start, end) for start in (0, 5, 10, 100) for end in (7, 20)
    ]


def test_a_shuffled_plan_of_fields_that_do_not_compare_is_the_same_plan(tmp_path: Path) -> None:
    plan = [Span(start_ms=0, end_ms=end) for end in (None, 7, 20, 3)]
    texts = set()
    for seed in range(20):
        random.Random(seed).shuffle(plan)
        texts.add(spans.encode(plan, tmp_path))
    assert len(texts) == 1


def test_a_plan_may_be_empty_or_any_iterable(tmp_path: Path) -> None:
    assert spans.encode([], tmp_path) == "[]"
    assert spans.encode((Span(start_ms=n) for n in (2, 1)), tmp_path) == (
        '[{"end_ms":null,"start_ms":1},\n{"end_ms":null,"start_ms":2}]'
    )


@pytest.mark.parametrize("titles", [[], ["a"], ["a", "b"], [",\n", "]", "\n,", "{},\n{}"]])
def test_a_stored_plan_comes_apart_into_its_chunks(titles: list[str], tmp_path: Path) -> None:
    stored = titled.encode([Title(text=title) for title in titles], tmp_path)
    assert parted(stored) == [Title(text=title).canonical() for title in sorted(titles)]
    assert parted(json.dumps(json.loads(stored))) == parted(stored)


def test_a_chunk_twice_is_refused(tmp_path: Path) -> None:
    twice = [Span(start_ms=1), Span(start_ms=0), Span(start_ms=1)]
    with pytest.raises(Permanent) as caught:
        spans.encode(twice, tmp_path)
    for part in ("plan spans", '"start_ms":1', "more than once", "return each piece of work once"):
        assert part in str(caught.value)


def test_a_chunk_is_frozen_and_strict() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Span(start_ms=0).start_ms = 1
    with pytest.raises(ValidationError, match="extra"):
        Span(start_ms=0, stop_ms=1)  # type: ignore[call-arg]
    assert Span(start_ms=0) == Span(start_ms=0)
    assert Span(end_ms=2, start_ms=0).canonical() == '{"end_ms":2,"start_ms":0}'


@pytest.mark.parametrize(
    ("made", "result", "part"),
    [
        (spans, None, "step spans returned None, which is not list[Span]"),
        (spans, [1], "step spans returned [1], which is not list[Span]"),
        (number, "7", "step number returned '7', which is not int"),
        (number, None, "step number returned None, which is not int"),
        (nothing, 3, "step nothing returned 3, which is not None"),
        (clip, {"video": 1}, "which is not Clip"),
        (level, Level(**{"from": float("nan")}), "which is not Level"),
        (number, "x" * 200, "xxx..., which is not int"),
    ],
)
def test_a_wrong_result_fails_for_good_and_names_the_step(
    made: Step, result: object, part: str, tmp_path: Path
) -> None:
    with pytest.raises(Permanent) as caught:
        made.encode(result, tmp_path)
    assert part in str(caught.value)
    assert "what the step's signature says" in caught.value.remedy


def test_plain_results_survive_json(tmp_path: Path) -> None:
    for made, value in ((number, 7), (nothing, None), (point, Point(3))):
        assert made.decode(made.encode(value, tmp_path), {}) == value


def test_aliases_and_computed_fields_survive_json(tmp_path: Path) -> None:
    value = Level(**{"from": 2.5})
    assert value.canonical() == '{"from":2.5}'
    assert level.decode(level.encode(value, tmp_path), {}) == value
    assert levels.decode(levels.encode([value], tmp_path), {}) == [value]


def test_files_are_named_in_the_result_and_found_again(tmp_path: Path) -> None:
    ctx = Context(tmp_path / "attempt")
    video, poster = ctx.out("video.mp4"), ctx.out("images/poster 1.jpg")
    video.write_bytes(b"v")
    poster.write_bytes(b"p")
    text = clips.encode([Clip(video=video, poster=poster, title="é")], ctx.folder)
    assert text == '[{"video":"video.mp4","poster":"images/poster 1.jpg","title":"é"}]'
    elsewhere = {"video.mp4": Path("/cache/1"), "images/poster 1.jpg": Path("/cache/2")}
    (again,) = clips.decode(text, elsewhere)
    assert again == Clip(video=Path("/cache/1"), poster=Path("/cache/2"), title="é")


def test_a_file_outside_the_attempt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match=r"step clip .* not made with ctx.out\(\)"):
        clip.encode(Clip(video=Path("/etc/passwd")), tmp_path)


def test_a_file_that_was_never_written_is_refused(tmp_path: Path) -> None:
    ctx = Context(tmp_path)
    with pytest.raises(Permanent, match=r"nothing was written to video\.mp4"):
        clip.encode(Clip(video=ctx.out("video.mp4")), ctx.folder)


@pytest.mark.parametrize(
    "name", ["a.txt", "a/b/c.txt", "chunk_0001 (2).srt", "ü", "a..b", "x=1,y=2", "a/result.json"]
)
def test_names_an_output_may_have(name: str, tmp_path: Path) -> None:
    path = Context(tmp_path).out(name)
    path.write_text("x")
    assert path == tmp_path / name


ESCAPES = ["", ".", "..", "../a", "a/../b", "/a", "a/", "a//b", ".hidden", "a/.b"]
ODDITIES = ["-rf", "a/-b", "a\n", "a\\b", "a\0", "a:b", "a*", "result.json"]


@pytest.mark.parametrize("name", [*ESCAPES, *ODDITIES])
def test_names_an_output_may_not_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        Context(tmp_path / "attempt").out(name)
    assert repr(name) in str(caught.value)
    assert "relative name" in caught.value.remedy
    assert not (tmp_path / "attempt").exists()


def test_a_light_step_has_nowhere_to_put_a_file() -> None:
    with pytest.raises(UsageError, match=r"durable=False .* 'a\.txt'. Remove durable=False"):
        Context(None).out("a.txt")


def test_progress_stays_between_0_and_1() -> None:
    seen: list[float] = []
    ctx = Context(Path(), report=seen.append)
    for fraction in (-1, 0.25, 7, float("nan")):
        ctx.progress(fraction)
    assert seen == [0, 0.25, 1, 0]


def test_a_context_made_of_a_folder_alone_is_enough(tmp_path: Path) -> None:
    ctx = Context(tmp_path)
    ctx.progress(0.5)
    assert not ctx.cancelled
    assert ctx.attempt == 1
    assert ctx.log is logging.getLogger("intermission.step")
    assert Context(tmp_path, is_cancelled=lambda: True).cancelled


def test_deferring_ends_the_step() -> None:
    with pytest.raises(Deferred, match="until t1 is reported") as caught:
        Context(Path()).defer("t1", timeout_s=9)
    assert (caught.value.token, caught.value.timeout_s) == ("t1", 9)


class Numbers(Chunk):
    z: int
    a: Annotated[int, Field(ge=-10)]


class Renamed(Chunk):
    z: int = Field(serialization_alias="zed")


class Doubled(Chunk):
    z: Annotated[int, PlainSerializer(lambda value: value * 2)]


class Mixed(Chunk):
    z: int
    text: str


@pytest.mark.parametrize(
    "chunk",
    [
        Numbers(z=2**70, a=-3),
        Renamed(z=1),
        Doubled(z=4),
        Mixed(z=1, text='é"\n'),
        Mixed(z=0, text=""),
    ],
)
def test_a_chunk_has_one_text_however_it_is_made(chunk: Chunk) -> None:
    slow = canonical(chunk.model_dump(mode="json", by_alias=True, round_trip=True))
    assert chunk.canonical() == slow
