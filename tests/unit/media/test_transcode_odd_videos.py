"""Videos that are stored in an odd way: turned, in fields, in odd sizes, with odd times."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.stream import VideoStream

from intermission.media.video_info import EncoderSettings, RenditionSize
from intermission.pipelines.transcode.ladder import choose
from video_samples import SIZE, Transcoded, ffmpeg, luma, transcoded, video

COUNT = 75
VOP, SEQUENCE, USER_DATA = b"\0\0\1\xb6", b"\0\0\1\xb3", b"\0\0\1\xb2"


def corner(_: int, size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Light in the upper left."""
    frame = np.full(size[::-1], 60, np.uint8)
    frame[: size[1] // 2, : size[0] // 2] = 220
    return frame


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_frames_are_turned_as_a_player_turns_them(degrees: int, tmp_path: Path) -> None:
    def turned(stream: VideoStream) -> None:
        stream.set_display_rotation(degrees)

    path = video(tmp_path / "a.mp4", count=3, draw=corner, setup=turned)
    ffmpeg("-i", path, "-frames:v", "1", tmp_path / "a.png")
    with av.open(str(tmp_path / "a.png")) as container:
        expected = luma(next(container.decode(video=0)))
    height, width = expected.shape
    done = transcoded(path, renditions=[RenditionSize(width, height, 1000)])
    assert (done.video.width, done.video.height) == (width, height)
    difference = np.abs(done.renditions[0].luma()[0].astype(int) - expected)
    assert difference.mean() < 4


def test_an_upright_video_is_offered_by_its_shorter_side(tmp_path: Path) -> None:
    def turned(stream: VideoStream) -> None:
        stream.set_display_rotation(90)

    path = video(tmp_path / "a.mp4", count=3, size=(256, 144), setup=turned)
    done = transcoded(path, renditions=[RenditionSize(72, 128, 500)])
    (rendition,) = choose(done.video, "144p").chosen
    assert (rendition.name, rendition.width, rendition.height) == ("144p", 144, 256)
    assert done.renditions[0].luma()[0].shape == (128, 72)


@pytest.mark.parametrize(
    ("name", "aspect", "size"),
    [("a.mp4", Fraction(4, 3), (128, 64)), ("a.mkv", Fraction(8, 9), (96, 72))],
)
def test_pixels_become_square(
    name: str, aspect: Fraction, size: tuple[int, int], tmp_path: Path
) -> None:
    def wide(stream: VideoStream) -> None:
        stream.codec_context.sample_aspect_ratio = aspect

    done = transcoded(
        video(tmp_path / name, count=3, setup=wide), renditions=[RenditionSize(*size, 500)]
    )
    assert (done.video.width, done.video.height) == size
    assert done.renditions[0].numbers() == [0, 1, 2]


def test_odd_sizes_become_even(tmp_path: Path) -> None:
    path = video(tmp_path / "a.avi", codec="mjpeg", size=(97, 65), pix_fmt="yuvj420p", count=3)
    done = transcoded(path, renditions=[RenditionSize(96, 64, 500), RenditionSize(62, 42, 200)])
    (rendition,) = choose(done.video, "1080p,42p").chosen
    assert (rendition.width, rendition.height) == (62, 42)
    assert [played.numbers() for played in done.renditions] == [[0, 1, 2]] * 2


def moving_fields(number: int, size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """A bar that moves from field to field, the upper first."""
    frame = np.full(size[::-1], 60, np.uint8)
    for field in (0, 1):
        x = _bar_at(2 * number + field, size)
        frame[field::2, x : x + 16] = 210
    return frame


def _bar_at(field: int, size: tuple[int, int]) -> int:
    return field * 2 % (size[0] - 16)


def combing(frame: np.ndarray[Any, Any]) -> float:
    """How much every line differs from those above and below it."""
    lines = frame.astype(int)
    return float(np.abs(2 * lines[1:-1] - lines[:-2] - lines[2:]).mean())


@pytest.mark.parametrize("first", ["tff", "bff"])
def test_fields_become_frames(first: str, tmp_path: Path) -> None:
    lines = video(tmp_path / "lines.mkv", codec="ffv1", draw=moving_fields, count=COUNT)
    path = tmp_path / "a.mp4"
    ffmpeg("-i", lines, "-vf", f"setfield={first}", "-c:v", "libx264", "-g", "25",
           "-sc_threshold", "0", "-flags", "+ildct+ilme", path)  # fmt: skip
    with av.open(str(path)) as container:
        assert combing(luma(next(container.decode(video=0)))) > 5
    done = transcoded(path)
    assert done.video.is_interlaced
    assert done.renditions[0].times() == list(done.shown)
    frames = done.renditions[0].luma()
    assert max(map(combing, frames)) < 1
    for n in (10, 30, 60):  # what is shown is the field that comes first
        at = _bar_at(2 * n + (first == "bff"), SIZE)
        bar = np.flatnonzero(frames[n].mean(axis=0) > 135)
        assert bar[0] == pytest.approx(at, abs=1)
    # Encoded without loss, every frame at a join is as if there were none: it looks at its
    # neighbours on both sides.
    exact, large = EncoderSettings(preset="ultrafast", crf=0), [RenditionSize(*SIZE, 100_000)]
    parts, whole = (
        transcoded(path, settings=exact, renditions=large, section_s=length_s).renditions[0].luma()
        for length_s in (1, 60)
    )
    assert [n for n in range(COUNT) if not np.array_equal(parts[n], whole[n])] == []


def test_frames_that_were_dropped_in_a_recording_leave_their_time(tmp_path: Path) -> None:
    """An AVI file keeps an empty packet for each."""
    times = [Fraction(n + (n > 10) * 5 + (n > 40) * 3, 25) for n in range(COUNT)]
    path = video(tmp_path / "a.avi", codec="mpeg4", times=times, tick=Fraction(1, 25))
    done = transcoded(path)
    assert done.renditions[0].numbers() == list(range(COUNT))
    assert [Fraction(at, done.video.scale) for at in done.shown] == times


def test_so_they_do_where_frames_are_counted(tmp_path: Path) -> None:
    """To within the few frames that are decoded ahead."""
    times = [Fraction(n + (n > 30) * 15, 25) for n in range(COUNT)]
    path = video(tmp_path / "a.avi", times=times, tick=Fraction(1, 25), options={"bf": "2"})
    done = transcoded(path)
    assert not done.video.has_stamps
    assert done.renditions[0].numbers() == list(range(COUNT))
    seconds = [at / done.video.scale for at in done.shown]
    off = [at - float(wanted) for at, wanted in zip(seconds, times, strict=True)]
    assert sum(abs(one) > 0.02 for one in off) <= 3
    assert seconds[-1] == pytest.approx(float(times[-1]), abs=0.001)


def is_even(done: Transcoded, count: int = COUNT) -> None:
    scale = done.video.scale
    assert [at / scale for at in done.shown] == pytest.approx([n / 25 for n in range(count)])
    assert done.video.end / scale == pytest.approx(count / 25)
    assert done.renditions[0].times() == list(done.shown)


def test_frames_without_times_are_counted(tmp_path: Path) -> None:
    """As in an AVI file whose codec stores frames in another order than they are shown."""
    done = transcoded(video(tmp_path / "a.avi", options={"bf": "2"}, count=COUNT))
    assert not done.video.has_stamps
    assert done.renditions[0].numbers() == list(range(COUNT))
    is_even(done)


def test_two_frames_in_one_packet(tmp_path: Path) -> None:
    """The packed bitstream of DivX: a packet with two frames, then one that stands for it."""
    options = {"bf": "1", "b_strategy": "0"}
    plain = video(tmp_path / "plain.avi", codec="mpeg4", options=options, count=COUNT)
    path = tmp_path / "a.avi"
    with av.open(str(plain)) as container, av.open(str(path), "w") as out:
        stream = out.add_stream_from_template(container.streams.video[0])
        coded = [bytes(packet) for packet in container.demux(video=0) if packet.size]
        for n, data in enumerate(_packed(coded)):
            packet = av.Packet(data)
            packet.stream, packet.time_base = stream, Fraction(1, 25)
            packet.pts = packet.dts = n
            packet.is_keyframe = n == 0
            out.mux(packet)
    done = transcoded(path)
    assert done.renditions[0].numbers() == list(range(COUNT))
    is_even(done)


def _packed(coded: list[bytes]) -> list[bytes]:
    packets: list[bytes] = []
    for data in coded:
        is_between = data[data.index(VOP) + 4] >> 6 == 2
        if is_between:  # into the packet of the one it leans on; an empty frame follows
            packets[-1] += data
            packets.append(VOP + b"\x50\x4f")
        else:
            packets.append(data)
    at = packets[0].index(SEQUENCE)
    packets[0] = packets[0][:at] + USER_DATA + b"DivX503b1393p\0" + packets[0][at:]
    return packets


def _restamped(plain: Path, path: Path, stamps: list[int]) -> Path:
    """The same packets, with these times in milliseconds."""
    with av.open(str(plain)) as container, av.open(str(path), "w") as out:
        stream = out.add_stream_from_template(container.streams.video[0])
        coded = (packet for packet in container.demux(video=0) if packet.size)
        for packet, at in zip(coded, stamps, strict=True):
            packet.stream, packet.time_base = stream, Fraction(1, 1000)
            packet.pts = packet.dts = at
            out.mux(packet)
    return path


def test_times_that_cannot_be_are_not_believed(tmp_path: Path) -> None:
    """A program wrote when frames are decoded where it should say when they are shown."""
    plain = video(tmp_path / "plain.mkv", count=COUNT)
    done = transcoded(_restamped(plain, tmp_path / "a.mkv", [n * 40 for n in range(COUNT)]))
    assert done.renditions[0].numbers() == list(range(COUNT))
    is_even(done)


def test_times_that_many_frames_share_are_not_believed(tmp_path: Path) -> None:
    plain = video(tmp_path / "plain.mkv", options={"bf": "0"}, count=COUNT)
    done = transcoded(_restamped(plain, tmp_path / "a.mkv", [n // 2 * 80 for n in range(COUNT)]))
    assert done.renditions[0].numbers() == list(range(COUNT))
    assert done.video.frames == COUNT


def test_of_two_frames_at_the_same_time_one_is_shown(tmp_path: Path) -> None:
    plain = video(tmp_path / "plain.mkv", options={"bf": "0"}, count=COUNT)
    stamps = [(n - (n in (30, 52))) * 40 for n in range(COUNT)]
    done = transcoded(_restamped(plain, tmp_path / "a.mkv", stamps))
    assert done.renditions[0].numbers() == [n for n in range(COUNT) if n not in (30, 52)]
    assert [at * 1000 // done.video.scale for at in done.shown] == sorted(set(stamps))


def test_a_clock_that_starts_again_is_not_followed(tmp_path: Path) -> None:
    """Two recordings, one behind the other in the same file."""
    once = video(tmp_path / "once.ts", count=COUNT).read_bytes()
    path = tmp_path / "a.ts"
    path.write_bytes(once + once)
    done = transcoded(path)
    assert done.renditions[0].numbers() == [*range(COUNT), *range(COUNT)]
    is_even(done, 2 * COUNT)


def test_cover_art_is_no_video(tmp_path: Path) -> None:
    cover = tmp_path / "cover.png"
    ffmpeg("-f", "lavfi", "-i", "color=red:s=64x64:d=1", "-frames:v", "1", cover)
    path = tmp_path / "a.mp4"
    ffmpeg("-i", video(tmp_path / "video.mp4", count=COUNT), "-i", cover, "-map", "1", "-map", "0",
           "-c", "copy", "-disposition:v:0", "attached_pic", path)  # fmt: skip
    done = transcoded(path)
    assert done.renditions[0].numbers() == list(range(COUNT))
