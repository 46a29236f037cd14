"""Every codec: equal beginnings, key frames where promised, names that players know."""

from __future__ import annotations

from pathlib import Path

import av
import pytest

from intermission.errors import ParameterError
from intermission.media.refusal import Refused
from intermission.media.video_encoding import start_encoders
from intermission.media.video_info import EncoderSettings, RenditionSize, Section, VideoTrack
from intermission.pipelines.transcode.codecs import BY_CODEC, codecs_of, usual
from video_samples import ffmpeg, transcoded, video

SIZE = 128, 96
COUNT = 60


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return video(tmp_path_factory.mktemp("source") / "a.mp4", size=SIZE, count=COUNT)


@pytest.mark.parametrize(
    ("settings", "named", "sample"),
    [
        (EncoderSettings("h264", "libx264", "veryfast"), "avc1.6400", b"avc1"),
        (EncoderSettings("h264", "libx264", "veryfast", threads=2), "avc1.6400", b"avc1"),
        (EncoderSettings("hevc", "libx265", "ultrafast", 20), "hvc1.1.6.L63.90", b"hvc1"),
        (EncoderSettings("hevc", "libx265", "ultrafast", 20, 2), "hvc1.1.6.L63.90", b"hvc1"),
        (EncoderSettings("hevc", "libx265", "ultrafast", 20, bits=10), "hvc1.2.4.L63.90", b"hvc1"),
        (EncoderSettings("av1", "libsvtav1", "10", 30), "av01.0.00M.08", b"av01"),
        (EncoderSettings("av1", "libsvtav1", "10", 30, bits=10), "av01.0.00M.10", b"av01"),
    ],
    ids=lambda value: (
        f"{value.codec}-{value.bits}x{value.threads}" if isinstance(value, EncoderSettings) else ""
    ),
)
def test_a_codec_is_cut_and_named(
    settings: EncoderSettings, named: str, sample: bytes, source: Path, tmp_path: Path
) -> None:
    done = transcoded(source, renditions=[RenditionSize(*SIZE, 2000)], settings=settings)
    (played,) = done.renditions
    assert len(done.sections) == 3
    assert len(set(played.init)) == 1
    assert codecs_of(played.init[0]).startswith(named)
    assert sample in played.init[0]
    cuts = [at for section in done.sections for at in section.cuts]
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
def test_the_level_follows_the_frames_a_second(fps: int, level: str) -> None:
    """A player asks by it whether it can keep up."""
    whole = VideoTrack(
        "h264", 1920, 1080, 90_000, 0, fps, 90_000, 0, True, 0, False, 8, 1, 1, 1, False
    )
    section = Section((0,), 90_000, fps, 0, (), (RenditionSize(1920, 1080, 5000),))
    (track,) = start_encoders(whole, section, EncoderSettings())
    assert codecs_of(track.init) == f"avc1.6400{level}"


def test_an_encoder_that_does_not_start_is_named() -> None:
    whole = VideoTrack("h264", 8, 8, 90_000, 0, 25, 90_000, 0, True, 0, False, 8, 1, 1, 1, False)
    section = Section((0,), 90_000, 25, 0, (), (RenditionSize(8, 8, 50),))
    with pytest.raises(Refused, match="libx265 does not start here for 8x8"):
        start_encoders(whole, section, EncoderSettings("hevc", "libx265"))
