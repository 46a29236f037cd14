"""What is asked of a child and checked here: a video indexed, a section encoded, within limits."""

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

from intermission.errors import MediaError
from intermission.media.encode_client import (
    FrameIndex,
    encode_video,
    index_frames,
    section_at,
    split,
)
from intermission.media.fmp4 import Segment
from intermission.media.info import Limits
from intermission.media.video_info import EncoderSettings, RenditionSize, Section, VideoTrack
from intermission.pipelines.transcode.shared_encode import wall_s
from media_samples import make
from video_samples import QUICK, video


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return video(tmp_path_factory.mktemp("source") / "a.mp4", count=75)


@pytest.fixture(scope="module")
def indexed(source: Path) -> FrameIndex:
    return index_frames(source)


def sections(found: FrameIndex, segment_s: int = 1, section_s: int = 1) -> list[Section]:
    assert found.video is not None
    made = split(found.video, found.shown, found.keys, segment_s=segment_s, section_s=section_s)
    return [replace(one, renditions=(RenditionSize(96, 64, 500),)) for one in made]


def encoded(
    source: Path, found: FrameIndex, section: Section, seen: Callable[[], object] = lambda: None
) -> list[Segment]:
    kept: list[Segment] = []

    def keep(_: int, data: bytes, segment: Segment | None) -> None:
        seen()
        if segment is not None:
            kept.append(segment)

    assert found.video is not None
    limits = Limits(niceness=7)
    encode_video(source, found.video, section, QUICK, keep, wall_s=60, limits=limits)
    return kept


def test_a_child_encodes_a_section_and_steps_back_for_others(
    source: Path, indexed: FrameIndex
) -> None:
    nice: set[int] = set()

    def look() -> None:
        nice.update(os.getpriority(os.PRIO_PROCESS, pid) for pid in children())

    before = os.getpriority(os.PRIO_PROCESS, 0)
    second = sections(indexed)[1]
    (segment,) = encoded(source, indexed, second, look)
    assert (segment.number, len(segment.shown)) == (1, 25)
    assert before + 7 in nice


def test_a_child_that_makes_something_else_is_not_believed(
    source: Path, indexed: FrameIndex
) -> None:
    """As if it had been asked for more frames than it gave."""
    first = sections(indexed)[0]
    with pytest.raises(MediaError, match="it has 26 frames, and 25 of them"):
        encoded(source, indexed, replace(first, frames=26))


def test_audio_alone_has_no_video(tmp_path: Path) -> None:
    found = index_frames(make(tmp_path / "a.wav", video=None, audio="pcm_s16le", seconds=1))
    assert found.video is None
    assert [one.codec for one in found.info.audio] == ["pcm_s16le"]


@given(
    gaps=st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    segment_s=st.integers(1, 5),
    section_s=st.integers(1, 60),
)
def test_sections_are_found_again_by_their_segments(
    gaps: list[int], segment_s: int, section_s: int
) -> None:
    """The last one too, which is shorter; and no frame is in two of them, or in none."""
    shown = array("q", accumulate(gaps, initial=0))
    whole = VideoTrack("h264", 96, 64, 1000, 5000, len(shown), shown[-1] + 40, 0, True, 0, False, 8,
                 1, 1, 1, False)  # fmt: skip
    keys = shown[::7]
    made = split(whole, shown, keys, segment_s=segment_s, section_s=section_s)
    assert [section.first_segment for section in made[:1]] == [0]
    assert sum(section.frames for section in made) == len(shown)
    assert [one.end for one in made] == [*(one.cuts[0] for one in made[1:]), whole.end]
    for one in made:
        assert one == section_at(whole, shown, keys, segment_s=segment_s,
                                 first=one.first_segment, segments=len(one.cuts))  # fmt: skip
        assert all(key - whole.origin <= one.cuts[0] for key in one.keys)
        assert len(one.cuts) <= max(1, section_s // segment_s)


def test_sections_become_shorter_and_begin_near_key_frames() -> None:
    """Ten minutes of 25 frames a second, with a key frame every 250 of them."""
    shown = array("q", range(0, 600_000, 40))
    whole = VideoTrack("h264", 96, 64, 1000, 0, len(shown), 600_000, 0, True, 0, False, 8,
                 1, 1, 1, False)  # fmt: skip
    made = split(whole, shown, shown[::250], segment_s=4, section_s=60)
    lengths = [len(one.cuts) for one in made]
    assert lengths[:3] == [15, 15, 15]
    assert all(lengths[n] >= lengths[n + 3] for n in range(len(lengths) - 3))
    assert all(length <= 4 for length in lengths[-4:])
    ways = [one.cuts[0] % 10_000 for one in made]
    assert sum(ways) < 2_000 * len(ways)  # of 4 s, taken as they come
    short = split(whole, shown, shown[::250], segment_s=4, section_s=8)
    assert {len(one.cuts) for one in short} == {2}


def test_time_runs_out_by_the_frames_there_are(indexed: FrameIndex) -> None:
    """More of them, larger ones, a slower codec and a longer way to the first all take longer."""
    assert indexed.video is not None
    short, *_ = sections(indexed)
    (long,) = sections(indexed, section_s=60)
    large = replace(short, renditions=(RenditionSize(3840, 2160, 15_000),))
    later = replace(short, cuts=(3600 * indexed.video.scale,), end=3601 * indexed.video.scale)
    usual_s = wall_s(indexed.video, short, EncoderSettings())
    assert 60 < usual_s < 180
    for other in (long, large, later):
        assert wall_s(indexed.video, other, EncoderSettings()) > usual_s
    hevc = EncoderSettings("hevc", "libx265")
    assert wall_s(indexed.video, large, hevc) > wall_s(indexed.video, large, EncoderSettings())
