"""Damaged videos: all that is there comes out, or the error says what is missing where."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import av
import pytest

from intermission.media.refusal import Refused
from video_samples import transcoded, video

COUNT = 75
HEVC = {"preset": "ultrafast", "x265-params": "log-level=none:pools=none:keyint=12"}


def overwritten(path: Path, source: Path, frames: range) -> Path:
    """A copy in which the data of these frames is noise."""
    random, data = Random(3), bytearray(source.read_bytes())
    with av.open(str(source)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    for packet in packets[frames.start : frames.stop]:
        assert packet.pos is not None
        begin, end = packet.pos + 4, packet.pos + packet.size
        data[begin:end] = random.randbytes(end - begin)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("a.mp4", {"options": {"bf": "0"}}),
        ("a.mkv", {"options": {"bf": "0"}}),
        ("hevc.mp4", {"codec": "libx265", "options": HEVC}),
        ("a.avi", {"codec": "mjpeg", "pix_fmt": "yuvj420p"}),
        ("a.webm", {"codec": "libvpx-vp9", "options": {"deadline": "realtime", "cpu-used": "8"}}),
    ],
)
def test_damage_is_refused_with_its_place(name: str, how: dict[str, Any], tmp_path: Path) -> None:
    whole = video(tmp_path / f"whole-{name}", count=COUNT, **how)
    path = overwritten(tmp_path / name, whole, range(30, 40))
    with pytest.raises(Refused) as refused:
        transcoded(path)
    found = re.match(
        r"is damaged at (\d\.\d{3}) s: from 1\.000 to 2\.000 s it has 25 frames, and \d+ of",
        refused.value.found,
    )
    assert found, refused.value.found
    assert 1.1 <= float(found[1]) <= 1.6


def test_a_damaged_beginning_is_damage_too(tmp_path: Path) -> None:
    whole = video(tmp_path / "whole.mp4", count=COUNT, options={"bf": "0"})
    path = overwritten(tmp_path / "a.mp4", whole, range(2))
    with pytest.raises(Refused, match=r"is damaged at 0\.000 s: from 0\.000 to 1\.000 s"):
        transcoded(path)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("a.mp4", {"container": {"movflags": "faststart"}}),
        ("a.mkv", {}),
        ("a.flv", {}),
        ("a.avi", {"codec": "mpeg4"}),
    ],
)
def test_a_video_that_lost_its_end_is_refused(
    name: str, how: dict[str, Any], tmp_path: Path
) -> None:
    whole = video(tmp_path / f"whole-{name}", count=COUNT, **how).read_bytes()
    path = tmp_path / name
    path.write_bytes(whole[: len(whole) * 6 // 10])
    with pytest.raises(Refused, match="ends after"):
        transcoded(path)


def test_a_stream_without_a_length_ends_where_it_ends(tmp_path: Path) -> None:
    whole = video(tmp_path / "whole.ts", count=COUNT, options={"bf": "0"}).read_bytes()
    path = tmp_path / "a.ts"
    path.write_bytes(whole[: len(whole) // 188 * 6 // 10 * 188])
    numbers = transcoded(path).renditions[0].numbers()
    assert numbers == list(range(len(numbers)))
    assert COUNT // 3 < len(numbers) < COUNT
