"""Sections join exactly: no frame is lost, doubled or moved, wherever the key frames are."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import av
import numpy as np
import pytest

from intermission.media.video_info import EncoderSettings, RenditionSize
from video_samples import Transcoded, ffmpeg, luma_of, similarity, transcoded, video

COUNT = 75
OPEN_GOP = {"x264-params": "open-gop=1:keyint=12:bframes=3:b-adapt=0:scenecut=0"}
INTRA_REFRESH = {"x264-params": "intra-refresh=1:keyint=12:scenecut=0:bframes=0"}
"""What it marks as key frames are frames from which on others become whole, one by one."""
CRA = {
    "preset": "ultrafast",
    "x265-params": "open-gop=1:keyint=12:bframes=3:b-adapt=0:scenecut=0:log-level=none:"
    "pools=none:frame-threads=1",
}
REALTIME = {"deadline": "realtime", "cpu-used": "8", "b": "500k"}
RANDOM = Random(5)
UNEVEN = [Fraction(0)]
for _ in range(COUNT - 1):
    UNEVEN.append(UNEVEN[-1] + Fraction(RANDOM.choice((1, 2, 3, 7, 12)), 100))
LATE = [7 + Fraction(n, 25) for n in range(COUNT)]


def is_seamless(done: Transcoded) -> None:
    """What players rely on, of every rendition."""
    for played in done.renditions:
        cuts = [at for section in done.sections for at in section.cuts]
        assert played.times() == list(done.shown)
        assert [one.start for one in played.segments] == cuts
        assert [one.end for one in played.segments] == [*cuts[1:], done.video.end]
        assert [one.keys[0] for one in played.segments] == cuts
        assert [one.number for one in played.segments] == list(range(len(cuts)))
        assert len(set(played.init)) == 1
        assert b"elst" not in played.init[0]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("even.mp4", {}),
        ("uneven.mp4", {"times": UNEVEN}),
        ("uneven.mkv", {"times": UNEVEN}),
        ("open-gop.mp4", {"options": OPEN_GOP}),
        ("open-gop.mkv", {"options": OPEN_GOP}),
        ("open-gop.ts", {"options": OPEN_GOP}),
        ("intra-refresh.mp4", {"options": INTRA_REFRESH}),
        ("intra-refresh.ts", {"options": INTRA_REFRESH}),
        ("cra.mp4", {"codec": "libx265", "options": CRA}),
        ("cra.ts", {"codec": "libx265", "options": CRA}),
        ("late.mkv", {"times": LATE}),
        ("late.ts", {"times": LATE}),
        ("stream.flv", {}),
        ("mpeg2.mpg", {"codec": "mpeg2video", "options": {"bf": "2"}}),
        ("mpeg2.ts", {"codec": "mpeg2video", "options": {"bf": "2"}}),
        ("vp9.webm", {"codec": "libvpx-vp9", "options": REALTIME}),
        ("plain.avi", {"codec": "mpeg4"}),
        ("b-frames.avi", {"codec": "mpeg4", "options": {"bf": "2"}}),
    ],
)
def test_every_frame_comes_once_at_its_time(name: str, how: dict[str, Any], tmp_path: Path) -> None:
    done = transcoded(video(tmp_path / name, count=COUNT, **how))
    assert len(done.sections) >= 3
    assert done.renditions[0].numbers() == list(range(COUNT))
    is_seamless(done)
    times = how.get("times", [Fraction(n, 25) for n in range(COUNT)])
    seconds = [at / done.video.scale for at in done.shown]
    assert seconds == pytest.approx([float(at - times[0]) for at in times], abs=0.001)


def test_a_search_that_ends_too_late_is_repeated(tmp_path: Path) -> None:
    """In a large transport stream libav finds its place roughly, often behind the key frame."""
    noise = np.random.default_rng(1)

    def draw(number: int, size: tuple[int, int]) -> np.ndarray[Any, Any]:
        noisy = luma_of(number, size) + noise.integers(-30, 30, size[::-1])
        return noisy.astype(np.uint8)

    options = {"b": "8M", "bf": "2", "g": "40", "sc_threshold": "0"}
    path = video(tmp_path / "a.ts", codec="mpeg2video", options=options, size=(320, 240), draw=draw,
                count=COUNT)  # fmt: skip
    done = transcoded(path)
    assert done.renditions[0].numbers() == list(range(COUNT))
    is_seamless(done)


def test_renditions_share_their_cuts(tmp_path: Path) -> None:
    path = video(tmp_path / "a.mp4", count=COUNT)
    renditions = [
        RenditionSize(96, 64, 2000),
        RenditionSize(64, 48, 500),
        RenditionSize(48, 32, 200),
    ]
    done = transcoded(path, renditions=renditions)
    is_seamless(done)
    for played in done.renditions:
        assert played.numbers() == list(range(COUNT))
    starts = [[one.start for one in played.segments] for played in done.renditions]
    assert starts[0] == starts[1] == starts[2]


def test_a_section_is_the_same_whatever_is_around_it(tmp_path: Path) -> None:
    """Its bytes depend on its own frames alone, so that it can be encoded again, elsewhere."""
    path = video(tmp_path / "a.mp4", options=OPEN_GOP, count=COUNT)
    one, other = (transcoded(path).renditions[0] for _ in range(2))
    assert one.data == other.data


def test_segments_are_cut_at_the_first_frame_of_their_time(tmp_path: Path) -> None:
    done = transcoded(video(tmp_path / "a.mp4", times=UNEVEN), section_s=2)
    for before, after in pairwise(done.renditions[0].segments):
        second = after.number * done.video.scale
        assert after.start >= second or after.start > before.start + done.video.scale
    assert {len(section.cuts) for section in done.sections[:-1]} == {2}


@pytest.mark.parametrize("cut_at_s", [0.6, 1.28])
def test_an_edit_list_hides_what_it_hides(cut_at_s: float, tmp_path: Path) -> None:
    """Frames before the cut are in the file, to be decoded and not to be shown."""
    whole = video(tmp_path / "whole.mp4", options=OPEN_GOP, count=COUNT)
    ffmpeg("-ss", cut_at_s, "-i", whole, "-c", "copy", tmp_path / "a.mp4")
    done = transcoded(tmp_path / "a.mp4")
    assert done.renditions[0].numbers() == list(range(round(cut_at_s * 25), COUNT))
    is_seamless(done)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
def test_frames_that_lean_on_missing_ones_are_not_waited_for(name: str, tmp_path: Path) -> None:
    """A video that was cut where frames before the key frame, in time, follow it in the file."""
    whole = video(tmp_path / "whole.mp4", codec="libx265", options=CRA, count=COUNT)
    ffmpeg("-ss", "0.96", "-i", whole, "-c", "copy", tmp_path / name)
    done = transcoded(tmp_path / name)
    assert done.renditions[0].numbers() == list(range(24, COUNT))
    is_seamless(done)


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
def test_a_recording_that_begins_between_key_frames(codec: str, tmp_path: Path) -> None:
    """It begins with its first key frame, which is shown from the first moment on."""
    options = {"bf": "2", "sc_threshold": "0"}
    whole = video(tmp_path / "whole.ts", codec=codec, options=options, count=COUNT).read_bytes()
    path = tmp_path / "a.ts"
    path.write_bytes(whole[188 * (len(whole) // 188 // 5) :])
    done = transcoded(path)
    numbers = done.renditions[0].numbers()
    assert numbers == list(range(numbers[0], COUNT))
    assert numbers[0] in (12, 24)
    assert done.shown[0] == 0
    is_seamless(done)


def test_a_video_that_begins_after_its_audio_shows_its_first_frame_at_once(tmp_path: Path) -> None:
    frames = video(tmp_path / "video.mp4", count=COUNT)
    ffmpeg("-itsoffset", "0.5", "-i", frames, "-f", "lavfi", "-i", "sine=d=3",
           "-map", "0:v", "-map", "1:a", "-c:v", "copy", tmp_path / "a.mp4")  # fmt: skip
    done = transcoded(tmp_path / "a.mp4")
    scale = done.video.scale
    assert done.renditions[0].numbers() == list(range(COUNT))
    assert [at / scale for at in done.shown[:3]] == pytest.approx([0, 0.54, 0.58])
    is_seamless(done)


def test_one_frame_is_a_video(tmp_path: Path) -> None:
    done = transcoded(video(tmp_path / "a.mp4", count=1))
    assert done.renditions[0].numbers() == [0]
    assert done.video.end == done.video.scale // 25
    is_seamless(done)


def test_frames_that_change_their_size(tmp_path: Path) -> None:
    """All come out in the size of their rendition."""
    small = video(tmp_path / "small.ts", count=40)
    large = video(tmp_path / "large.ts", count=35, size=(128, 96),
                 draw=lambda n, size: luma_of(n + 40, size))  # fmt: skip
    path = tmp_path / "a.ts"
    with av.open(str(path), "w") as out:
        stream = None
        for source, shift in ((small, 0), (large, 40 * 3600)):
            with av.open(str(source)) as container:
                stream = stream or out.add_stream_from_template(container.streams.video[0])
                for packet in container.demux(video=0):
                    if packet.dts is not None and packet.pts is not None:
                        packet.dts, packet.pts = packet.dts + shift, packet.pts + shift
                        packet.stream = stream
                        out.mux(packet)
    done = transcoded(path)
    assert done.video.has_stamps
    assert done.renditions[0].numbers() == list(range(COUNT))
    is_seamless(done)


def test_a_join_looks_like_its_neighbourhood(tmp_path: Path) -> None:
    """A moving pattern: no frame at a join is worse than the worst of those around it."""

    def draw(number: int, size: tuple[int, int]) -> np.ndarray[Any, Any]:
        x, y = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
        return (120 + 60 * np.sin((x + 2 * number) / 5) + 40 * np.cos(y / 7)).astype(np.uint8)

    path = video(tmp_path / "a.mp4", count=COUNT, draw=draw, options={"crf": "10"})
    done = transcoded(path, settings=EncoderSettings(preset="veryfast"))
    likeness = [
        similarity(draw(n, (96, 64)), shown) for n, shown in enumerate(done.renditions[0].luma())
    ]
    for join in (25, 50):
        around = likeness[join - 10 : join - 2] + likeness[join + 3 : join + 10]
        assert min(likeness[join - 2 : join + 3]) >= min(around) - 0.01
    assert min(likeness) > 0.9
