"""Colours come out as they went in, and say what they are; HDR is mapped where that is asked."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from intermission.errors import ParameterError
from intermission.media.scaling import scaled_frames
from intermission.media.video_info import HLG, PQ, EncoderSettings, RenditionSize, VideoTrack
from intermission.pipelines.transcode.codecs import BY_CODEC, settings_of, usual
from video_samples import SIZE, transcoded, video

BT2020 = 9
COUNT = 5
HEVC = {"preset": "ultrafast", "x265-params": "log-level=none:pools=none"}


def tagged(primaries: int, transfer: int, matrix: int) -> Any:
    def setup(stream: VideoStream) -> None:
        context = stream.codec_context
        context.color_primaries, context.color_trc = primaries, transfer
        context.colorspace, context.color_range = matrix, 1

    return setup


def tags_of(frame: VideoFrame) -> tuple[int, int, int, int]:
    return (
        int(frame.color_primaries),
        int(frame.color_trc),
        int(frame.colorspace),
        int(frame.color_range),
    )


@pytest.mark.parametrize("tags", [(1, 1, 1), (5, 6, 5), (BT2020, 14, BT2020)])
def test_tags_are_carried_over(tags: tuple[int, int, int], tmp_path: Path) -> None:
    done = transcoded(video(tmp_path / "a.mp4", count=COUNT, setup=tagged(*tags)))
    assert tags_of(done.renditions[0].frames()[0]) == (*tags, 1)


def test_rgb_becomes_what_screens_take(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "bgr0"
        red = np.zeros((*SIZE[::-1], 3), np.uint8)
        red[..., 0] = 255
        frame = VideoFrame.from_ndarray(red, format="rgb24").reformat(format="bgr0")
        frame.pts, frame.time_base = 0, Fraction(1, 25)
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    (shown,) = transcoded(path).renditions[0].frames()
    assert [bytes(plane)[0] for plane in shown.planes] == pytest.approx([63, 102, 240], abs=2)
    assert tags_of(shown)[2:] == (1, 1)


def test_the_full_range_becomes_the_usual_one(tmp_path: Path) -> None:
    def white(_: int, size: tuple[int, int]) -> np.ndarray[Any, Any]:
        return np.full(size[::-1], 255, np.uint8)

    path = video(tmp_path / "a.avi", codec="mjpeg", pix_fmt="yuvj420p", draw=white, count=COUNT)
    done = transcoded(path)
    frame = done.renditions[0].frames()[0]
    assert done.video.full_range
    assert bytes(frame.planes[0])[0] == pytest.approx(235, abs=1)
    assert tags_of(frame)[3] == 1


@pytest.mark.parametrize(
    ("codec", "encoder", "preset", "name"),
    [("hevc", "libx265", "ultrafast", "a.mp4"), ("av1", "libsvtav1", "10", "a.mkv")],
)
def test_hdr_is_kept_in_ten_bits(
    codec: str, encoder: str, preset: str, name: str, tmp_path: Path
) -> None:
    path = video(tmp_path / name, codec="libx265", options=HEVC, pix_fmt="yuv420p10le", count=COUNT,
                size=(128, 96), setup=tagged(BT2020, PQ, BT2020))  # fmt: skip
    settings = EncoderSettings(codec, encoder, preset, 20, bits=10)
    done = transcoded(path, renditions=[RenditionSize(128, 96, 2000)], settings=settings)
    assert done.video.is_hdr
    assert done.video.bits == 10
    frame = done.renditions[0].frames()[0]
    assert frame.format.name == "yuv420p10le"
    assert tags_of(frame) == (BT2020, PQ, BT2020, 1)
    assert done.renditions[0].numbers() == list(range(COUNT))


def test_ten_bits_become_eight_for_h264(tmp_path: Path) -> None:
    path = video(tmp_path / "a.mkv", codec="ffv1", pix_fmt="yuv420p10le", count=COUNT)
    done = transcoded(path)
    assert done.video.bits == 10
    assert done.renditions[0].frames()[0].format.name == "yuv420p"
    assert done.renditions[0].numbers() == list(range(COUNT))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transfer", "white", "grey"),
    # Codes of ten bits: 1,000 nits and about 50; the white of paper in HLG and its grey.
    [(PQ, 721, 440), (HLG, 721, 440)],
)
def test_hdr_is_mapped_to_the_range_of_every_screen(transfer: int, white: int, grey: int) -> None:
    """White stays white with room for what is brighter, greys stay apart, and blue stays blue."""
    codes = [(64, 512, 512), (grey, 512, 512), (white, 512, 512), (300, 600, 470)]
    settings = EncoderSettings(tone_map=True)
    frames = [_hdr(transfer, n, code) for n, code in enumerate(codes)]
    video = VideoTrack(
        "hevc", 64, 64, 25, 0, 4, 4, 0, True, 0, False, 10, BT2020, transfer, BT2020, False
    )
    sizes = list(scaled_frames(iter(frames), video, [RenditionSize(32, 32, 100)], settings))
    black, grey_out, white_out, blue = [
        [bytes(plane)[0] for plane in one.planes] for (one,) in sizes
    ]
    assert black == pytest.approx([16, 128, 128], abs=2)
    assert 150 < white_out[0] < 225
    assert white_out[1:] == pytest.approx([128, 128], abs=2)
    assert 85 < grey_out[0] < white_out[0] - 40
    assert blue[1] > 140 > 120 > blue[2]
    assert {one.format.name for (one,) in sizes} == {"yuv420p"}


def _hdr(transfer: int, number: int, code: tuple[int, int, int]) -> VideoFrame:
    frame = VideoFrame(64, 64, "yuv420p10le")
    for plane, value in zip(frame.planes, code, strict=True):
        plane.update(np.full(plane.buffer_size // 2, value, "<u2").tobytes())
    frame.color_primaries, frame.color_trc, frame.colorspace = BT2020, transfer, BT2020
    frame.color_range = 1
    frame.pts, frame.time_base = number, Fraction(1, 25)
    return frame


@pytest.mark.parametrize(
    ("codec", "hdr", "bits", "is_hdr", "expected"),
    [
        ("h264", "auto", 10, True, (8, True)),
        ("hevc", "auto", 10, True, (10, False)),
        ("av1", "auto", 10, True, (10, False)),
        ("hevc", "tone-map", 10, True, (8, True)),
        ("hevc", "tone-map", 10, False, (10, False)),
        ("h264", "auto", 10, False, (8, False)),
        ("av1", "keep", 8, False, (8, False)),
    ],
)
def test_what_becomes_of_hdr(
    codec: str, hdr: str, bits: int, is_hdr: bool, expected: tuple[int, bool]
) -> None:
    transfer = PQ if is_hdr else 1
    video = VideoTrack("hevc", 64, 64, 25, 0, 4, 4, 0, True, 0, False, bits, 1, transfer, 1, False)
    preset, crf, hdr = usual(codec, "", BY_CODEC, hdr)
    settings = settings_of(video, codec, preset, crf, 1, hdr)
    assert (settings.bits, settings.tone_map) == expected


def test_h264_cannot_keep_hdr() -> None:
    with pytest.raises(ParameterError, match="--codec hevc"):
        usual("h264", "", BY_CODEC, "keep")
