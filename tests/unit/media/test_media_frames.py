"""Single frames."""

from __future__ import annotations

from pathlib import Path

import pytest

from intermission.errors import MediaError
from intermission.media import Frame, Limits, frames
from media_samples import FPS, HEIGHT, WIDTH, make


def number_of(frame: Frame) -> float:
    """Which frame it is, by its brightness (16..235 stand for black..white in the video)."""
    level = sum(frame.rgb) / len(frame.rgb)
    return (level * 219 / 255 + 16) / 4


def test_a_file_without_frames_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "a.wav", video=None, audio="pcm_s16le", seconds=1)
    with pytest.raises(MediaError, match="has no video"):
        next(frames(path, [0]))


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
def test_each_time_shows_the_frame_on_screen(name: str, tmp_path: Path) -> None:
    path = make(tmp_path / name, audio=None)
    asked = [200, 239, 240, 1000, 1700, 9000, 400]
    shown = list(frames(path, asked))
    expected = [5, 5, 6, 25, 42, 49, 10]
    assert [round(frame.ms * FPS / 1000) for frame in shown] == expected
    assert [number_of(frame) for frame in shown] == pytest.approx(expected, abs=0.6)
    assert {(frame.width, frame.height) for frame in shown} == {(WIDTH, HEIGHT)}
    assert {len(frame.rgb) for frame in shown} == {WIDTH * HEIGHT * 3}


def test_twenty_thousand_times_are_one_request(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", audio=None, seconds=40, size=(16, 16))
    asked = [2 * n for n in range(20_000)]
    shown = [frame.ms for frame in frames(path, asked)]
    assert len(shown) == len(asked)
    assert shown == sorted(shown)
    assert len(set(shown)) == 40 * FPS


def test_rows_carry_no_padding(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", audio=None, seconds=0.2, size=(50, 38))
    assert len(next(frames(path, [0])).rgb) == 50 * 38 * 3


def test_memory_is_limited_while_decoding(video: Path, tmp_path: Path) -> None:
    huge = make(tmp_path / "a.avi", video="mjpeg", audio=None, seconds=0.04, size=(4096, 4096))
    limits = Limits(memory_bytes=200 << 20)
    assert next(frames(video, [0], limits=limits)).width == WIDTH
    with pytest.raises(MediaError, match="more memory to read than the limit of 200 MiB"):
        next(frames(huge, [0], limits=limits))
