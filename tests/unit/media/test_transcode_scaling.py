"""The key decides the bytes: a rendition is the same whatever it is encoded together with."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from av.video.stream import VideoStream

from intermission.media.scaling import AS_DECODED, scaling_path
from intermission.media.video_info import PQ, EncoderSettings, RenditionSize, VideoTrack
from video_samples import QUICK, transcoded, video

BT2020 = 9
TONE_MAPPED = EncoderSettings(preset="ultrafast", tone_map=True)


def noise(number: int, size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Fine detail, so that frames that were scaled in another way are other frames."""
    return np.random.default_rng(number).integers(40, 200, size[::-1]).astype(np.uint8)


def noisy(path: Path, size: tuple[int, int], **how: Any) -> Path:
    return video(path / "a.mkv", codec="ffv1", count=2, size=size, draw=noise, **how)


def renditions(size: tuple[int, int], *lines: int) -> list[RenditionSize]:
    return [RenditionSize(2 * round(size[0] * n / size[1] / 2), n, 2000) for n in lines]


def alone_and_in(
    path: Path, wanted: list[RenditionSize], count: int, settings: EncoderSettings = QUICK
) -> None:
    """Every rendition alone, and in every set of so many of them: the same bytes."""
    alone = [
        transcoded(path, renditions=[one], settings=settings).renditions[0].file for one in wanted
    ]
    for chosen in combinations(range(len(wanted)), count):
        done = transcoded(path, renditions=[wanted[n] for n in chosen], settings=settings)
        for n, made in zip(chosen, done.renditions, strict=True):
            assert made.file == alone[n], f"{wanted[n]} beside {[wanted[k] for k in chosen]}"


@pytest.mark.parametrize("count", [2, 3, 4])
def test_any_company_gives_the_same_bytes(count: int, tmp_path: Path) -> None:
    size = 160, 120
    alone_and_in(noisy(tmp_path, size), renditions(size, 120, 90, 60, 30), count)


@pytest.mark.parametrize(
    ("size", "lines"),
    [
        ((853, 481), (480, 240)),
        ((960, 800), (720, 480, 360)),
        ((1152, 1152), (1152, 1080, 720, 480)),
    ],
)
def test_also_of_sources_of_other_sizes(
    size: tuple[int, int], lines: tuple[int, ...], tmp_path: Path
) -> None:
    alone_and_in(noisy(tmp_path, size), renditions(size, *lines), len(lines))


def test_also_where_ten_bits_become_eight(tmp_path: Path) -> None:
    size = 160, 120
    path = noisy(tmp_path, size, pix_fmt="yuv420p10le")
    alone_and_in(path, renditions(size, 120, 90, 60), 3)


@pytest.mark.slow
def test_also_where_hdr_is_mapped(tmp_path: Path) -> None:
    size = 160, 120

    def hdr(stream: VideoStream) -> None:
        context = stream.codec_context
        context.color_primaries, context.color_trc, context.colorspace = BT2020, PQ, BT2020

    path = noisy(tmp_path, size, pix_fmt="yuv420p10le", setup=hdr)
    alone_and_in(path, renditions(size, 120, 60), 2, TONE_MAPPED)


@pytest.mark.parametrize(
    ("source", "rendition", "between"),
    [
        ((1920, 1080), (1920, 1080), [AS_DECODED]),
        ((1920, 1080), (1280, 720), [AS_DECODED]),
        ((1920, 1080), (640, 360), [AS_DECODED, (1280, 720)]),
        ((1080, 1920), (360, 640), [AS_DECODED, (720, 1280)]),
        ((3840, 2160), (2560, 1440), [AS_DECODED]),
        ((3840, 2160), (1920, 1080), []),
        ((3840, 2160), (1280, 720), [(1920, 1080)]),
        ((3840, 2160), (854, 480), [(1920, 1080), (1280, 720)]),
        ((640, 360), (320, 180), [AS_DECODED]),
    ],
)
def test_sizes_between_are_those_that_a_usual_ladder_has_anyway(
    source: tuple[int, int], rendition: tuple[int, int], between: list[tuple[int, int]]
) -> None:
    whole = VideoTrack("h264", *source, 1000, 0, 1, 40, 0, True, 0, False, 8, 1, 1, 1, False)
    assert scaling_path(whole, RenditionSize(*rendition, 500)) == [*between, rendition]
