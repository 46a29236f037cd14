"""Every codec: equal beginnings, key frames where promised, names that players know."""

from __future__ import annotations

from pathlib import Path

import av
import pytest

from film_samples import ffmpeg, film, transcoded
from intermission.errors import ParameterError
from intermission.media.encoding import started
from intermission.media.film import Coding, Film, Passage, Rung
from intermission.media.refusal import Refused
from intermission.pipelines.transcode.codecs import BY_CODEC, codecs_of, usual

SIZE = 128, 96
COUNT = 60


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return film(tmp_path_factory.mktemp("source") / "a.mp4", size=SIZE, count=COUNT)


@pytest.mark.parametrize(
    ("coding", "named", "sample"),
    [
        (Coding("h264", "libx264", "veryfast"), "avc1.6400", b"avc1"),
        (Coding("h264", "libx264", "veryfast", threads=2), "avc1.6400", b"avc1"),
        (Coding("hevc", "libx265", "ultrafast", 20), "hvc1.1.6.L63.90", b"hvc1"),
        (Coding("hevc", "libx265", "ultrafast", 20, 2), "hvc1.1.6.L63.90", b"hvc1"),
        (Coding("hevc", "libx265", "ultrafast", 20, bits=10), "hvc1.2.4.L63.90", b"hvc1"),
        (Coding("av1", "libsvtav1", "10", 30), "av01.0.00M.08", b"av01"),
        (Coding("av1", "libsvtav1", "10", 30, bits=10), "av01.0.00M.10", b"av01"),
    ],
    ids=lambda value: (
        f"{value.codec}-{value.bits}x{value.threads}" if isinstance(value, Coding) else ""
    ),
)
def test_a_codec_is_cut_and_named(
    coding: Coding, named: str, sample: bytes, source: Path, tmp_path: Path
) -> None:
    done = transcoded(source, rungs=[Rung(*SIZE, 2000)], coding=coding)
    (played,) = done.rungs
    assert len(done.passages) == 3
    assert len(set(played.init)) == 1
    assert codecs_of(played.init[0]).startswith(named)
    assert sample in played.init[0]
    cuts = [at for passage in done.passages for at in passage.cuts]
    assert [one.keys for one in played.segments] == [(at,) for at in cuts]
    assert played.numbers() == list(range(COUNT))
    assert played.times() == list(done.shown)
    path = tmp_path / "a.mp4"
    path.write_bytes(played.file)
    ffmpeg("-xerror", "-i", path, "-f", "null", "-")
    for data in played.data:  # a player may begin with any segment
        assert b"mdat\x12\x00" not in data, "AV1 in MP4 has no delimiters"
        path.write_bytes(played.init[0] + data)
        with av.open(str(path)) as container:
            assert next(container.decode(video=0)).key_frame


def test_the_usual_settings_are_those_of_the_codec() -> None:
    assert usual("h264", "", BY_CODEC, "auto") == ("veryfast", 23, "tone-map")
    assert usual("av1", "", BY_CODEC, "auto")[:2] == ("10", 35)
    assert usual("hevc", "slow", 18, "auto") == ("slow", 18, "keep")
    with pytest.raises(ParameterError, match="from 0 to 13"):
        usual("av1", "veryfast", BY_CODEC, "auto")


@pytest.mark.parametrize(("fps", "level"), [(25, "28"), (60, "2a"), (120, "33")])
def test_the_level_follows_the_pictures_a_second(fps: int, level: str) -> None:
    """A player asks by it whether it can keep up."""
    whole = Film("h264", 1920, 1080, 90_000, 0, fps, 90_000, 0, True, 0, False, 8, 1, 1, 1, False)
    passage = Passage((0,), 90_000, fps, 0, (), (Rung(1920, 1080, 5000),))
    (track,) = started(whole, passage, Coding())
    assert codecs_of(track.init) == f"avc1.6400{level}"


def test_an_encoder_that_does_not_start_is_named() -> None:
    whole = Film("h264", 8, 8, 90_000, 0, 25, 90_000, 0, True, 0, False, 8, 1, 1, 1, False)
    passage = Passage((0,), 90_000, 25, 0, (), (Rung(8, 8, 50),))
    with pytest.raises(Refused, match="libx265 does not start here, for 8x8"):
        started(whole, passage, Coding("hevc", "libx265"))
