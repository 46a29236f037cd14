"""What is asked of a child and checked here: a film surveyed, a passage encoded, within limits."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watching import children

from film_samples import QUICK, film
from intermission.errors import MediaError
from intermission.media.film import Coding, Film, Passage, Rung
from intermission.media.fragments import Segment
from intermission.media.info import Limits
from intermission.media.producing import Survey, cut, encode, passage_of, survey
from intermission.pipelines.transcode.bench import wall_s
from media_samples import make


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return film(tmp_path_factory.mktemp("source") / "a.mp4", count=75)


@pytest.fixture(scope="module")
def surveyed(source: Path) -> Survey:
    return survey(source)


def passages(found: Survey, segment_s: int = 1, passage_s: int = 1) -> list[Passage]:
    assert found.film is not None
    made = cut(found.film, found.shown, found.keys, segment_s=segment_s, passage_s=passage_s)
    return [replace(one, rungs=(Rung(96, 64, 500),)) for one in made]


def encoded(
    source: Path, found: Survey, passage: Passage, seen: Callable[[], object] = lambda: None
) -> list[Segment]:
    kept: list[Segment] = []

    def keep(_: int, data: bytes, segment: Segment | None) -> None:
        seen()
        if segment is not None:
            kept.append(segment)

    assert found.film is not None
    limits = Limits(niceness=7)
    encode(source, found.film, passage, QUICK, keep, wall_s=60, limits=limits)
    return kept


def test_a_child_encodes_a_passage_and_steps_back_for_others(
    source: Path, surveyed: Survey
) -> None:
    nice: set[int] = set()

    def look() -> None:
        nice.update(os.getpriority(os.PRIO_PROCESS, pid) for pid in children())

    before = os.getpriority(os.PRIO_PROCESS, 0)
    second = passages(surveyed)[1]
    (segment,) = encoded(source, surveyed, second, look)
    assert (segment.number, len(segment.shown)) == (1, 25)
    assert before + 7 in nice


def test_a_child_that_makes_something_else_is_not_believed(source: Path, surveyed: Survey) -> None:
    """As if it had been asked for more pictures than it gave."""
    first = passages(surveyed)[0]
    with pytest.raises(MediaError, match="it has 26 pictures, and 25 of them"):
        encoded(source, surveyed, replace(first, frames=26))


def test_sound_alone_has_no_film(tmp_path: Path) -> None:
    found = survey(make(tmp_path / "a.wav", video=None, audio="pcm_s16le", seconds=1))
    assert found.film is None
    assert [one.codec for one in found.info.audio] == ["pcm_s16le"]


@given(
    gaps=st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    segment_s=st.integers(1, 5),
    passage_s=st.integers(1, 60),
)
def test_passages_are_found_again_by_their_segments(
    gaps: list[int], segment_s: int, passage_s: int
) -> None:
    """The last one too, which is shorter; and no picture is in two of them, or in none."""
    shown = array("q", accumulate(gaps, initial=0))
    whole = Film("h264", 96, 64, 1000, 5000, len(shown), shown[-1] + 40, 0, True, 0, False, 8,
                 1, 1, 1, False)  # fmt: skip
    keys = shown[::7]
    made = cut(whole, shown, keys, segment_s=segment_s, passage_s=passage_s)
    assert [passage.first_segment for passage in made[:1]] == [0]
    assert sum(passage.frames for passage in made) == len(shown)
    assert [one.end for one in made] == [*(one.cuts[0] for one in made[1:]), whole.end]
    for one in made:
        assert one == passage_of(whole, shown, keys, segment_s=segment_s,
                                 first=one.first_segment, segments=len(one.cuts))  # fmt: skip
        assert all(key - whole.origin <= one.cuts[0] for key in one.keys)
        assert len(one.cuts) <= max(1, passage_s // segment_s)


def test_passages_become_shorter_and_begin_near_key_frames() -> None:
    """Ten minutes of 25 pictures a second, with a key frame every 250 of them."""
    shown = array("q", range(0, 600_000, 40))
    whole = Film("h264", 96, 64, 1000, 0, len(shown), 600_000, 0, True, 0, False, 8,
                 1, 1, 1, False)  # fmt: skip
    made = cut(whole, shown, shown[::250], segment_s=4, passage_s=60)
    lengths = [len(one.cuts) for one in made]
    assert lengths[:3] == [15, 15, 15]
    assert all(lengths[n] >= lengths[n + 3] for n in range(len(lengths) - 3))
    assert all(length <= 4 for length in lengths[-4:])
    ways = [one.cuts[0] % 10_000 for one in made]
    assert sum(ways) < 2_000 * len(ways)  # of 4 s, taken as they come
    short = cut(whole, shown, shown[::250], segment_s=4, passage_s=8)
    assert {len(one.cuts) for one in short} == {2}


def test_time_runs_out_by_the_pictures_there_are(surveyed: Survey) -> None:
    """More of them, larger ones, a slower codec and a longer way to the first all take longer."""
    assert surveyed.film is not None
    short, *_ = passages(surveyed)
    (long,) = passages(surveyed, passage_s=60)
    large = replace(short, rungs=(Rung(3840, 2160, 15_000),))
    later = replace(short, cuts=(3600 * surveyed.film.scale,), end=3601 * surveyed.film.scale)
    usual_s = wall_s(surveyed.film, short, Coding())
    assert 60 < usual_s < 180
    for other in (long, large, later):
        assert wall_s(surveyed.film, other, Coding()) > usual_s
    hevc = Coding("hevc", "libx265")
    assert wall_s(surveyed.film, large, hevc) > wall_s(surveyed.film, large, Coding())
