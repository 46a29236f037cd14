"""What `probe` tells of files of every common kind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from intermission.errors import EnvironmentFault, MediaError, SourceError
from intermission.media import AudioStream, Limits, VideoStream, probe
from intermission.media.encode_client import index_frames
from media_samples import make
from video_samples import ffmpeg

SOUND = {
    "a.mp3": ("libmp3lame", "mp3", "mp3"),
    "a.wav": ("pcm_s16le", "wav", "pcm_s16le"),
    "a.flac": ("flac", "flac", "flac"),
    "a.m4a": ("aac", "mov", "aac"),
    "a.aac": ("aac", "aac", "aac"),
    "a.ogg": ("libopus", "ogg", "opus"),
}


def test_a_video(video: Path) -> None:
    info = probe(video)
    assert info.container == "mov"
    assert info.size_bytes == video.stat().st_size
    assert info.start_ms == 0
    assert abs(info.duration_ms - 2000) < 50
    assert info.video == (
        VideoStream(
            index=0,
            codec="h264",
            width=64,
            height=48,
            fps="25/1",
            rotation_deg=0,
            frames=50,
            language="und",
            attached_picture=False,
        ),
    )
    assert info.audio == (AudioStream(1, "aac", 44_100, 1, "deu"),)


@pytest.mark.parametrize("name", SOUND)
def test_audio_alone(name: str, tmp_path: Path) -> None:
    encoder, container, codec = SOUND[name]
    info = probe(make(tmp_path / name, video=None, audio=encoder, seconds=1, rate_hz=48_000))
    assert (info.container, info.video) == (container, ())
    assert [(stream.codec, stream.rate_hz) for stream in info.audio] == [(codec, 48_000)]
    assert abs(info.duration_ms - 1000) < 90


def test_a_rotated_silent_video_in_matroska(tmp_path: Path) -> None:
    info = probe(make(tmp_path / "a.mkv", audio=None, seconds=1, rotation_deg=90))
    assert (info.container, info.audio) == ("matroska", ())
    assert info.video[0].rotation_deg == 90


def test_a_transport_stream_starts_at_its_own_zero(tmp_path: Path) -> None:
    info = probe(make(tmp_path / "a.ts", seconds=1))
    assert info.container == "mpegts"
    assert info.start_ms > 0
    assert abs(info.duration_ms - 1000) < 90


def test_the_name_does_not_matter(video: Path, tmp_path: Path) -> None:
    odd = tmp_path / "-i concat:\n$(x).txt"
    odd.write_bytes(video.read_bytes())
    assert probe(odd).video


def test_a_live_recording_without_a_duration_is_counted(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mkv", seconds=1, options={"live": "1"})
    assert abs(probe(path).duration_ms - 1000) < 90


def test_a_fragmented_video_is_counted(tmp_path: Path) -> None:
    options = {"movflags": "frag_keyframe+empty_moov"}
    path = make(tmp_path / "a.mp4", options=options)
    assert abs(probe(path).duration_ms - 2000) < 150


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (Limits(duration_s=1), r"video.mp4 claims 2 s, more than the limit of 1 s"),
        (Limits(streams=1), "2 streams, more than the limit of 1"),
        (Limits(side_pixels=50), "frames of 64 by 48, more than the limit of 50 by 50"),
        (Limits(memory_bytes=50 << 20), "memory to read than the limit of 50 MiB"),
        (Limits(wall_s=0.02), "the wall time limit"),
    ],
)
def test_limits_are_named_when_they_are_passed(video: Path, limits: Limits, named: str) -> None:
    with pytest.raises(MediaError, match=named) as caught:
        probe(video, limits=limits)
    assert not caught.value.retryable
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "codec", "size"),
    [
        ("a.mkv", "mjpeg", "16000x16000"),
        ("a.avi", "mjpeg", "16000x64"),
        ("a.mov", "png", "64x8194"),
        ("a.mp4", "libx264", "8194x64"),
    ],
)
def test_a_frame_too_large_is_refused_before_it_is_decoded(
    name: str, codec: str, size: str, tmp_path: Path
) -> None:
    """The memory would not be enough to decode the first one."""
    path, source = tmp_path / name, f"color=s={size}:d=0.1:r=10"
    ffmpeg("-f", "lavfi", "-i", source, "-c:v", codec, path)
    for read in (probe, index_frames):
        with pytest.raises(
            MediaError, match=f"of {size.replace('x', ' by ')}, more than"
        ) as caught:
            read(path, limits=Limits(memory_bytes=1 << 30))
        assert not caught.value.retryable
        assert "8192 by 8192" in str(caught.value)


def test_a_frame_larger_than_its_header_says_is_not_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    source = "color=s=8000x9000:d=0.1:r=10"
    ffmpeg("-f", "lavfi", "-i", source, "-c:v", "mjpeg", path)
    data = path.read_bytes()
    small = data.replace((8000).to_bytes(2, "big"), (64).to_bytes(2, "big"), 1)
    small = small.replace((9000).to_bytes(2, "big"), (48).to_bytes(2, "big"), 1)
    assert small != data
    path.write_bytes(small)
    with pytest.raises(MediaError) as caught:
        index_frames(path)
    assert not caught.value.retryable


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    for name in ("", "pipe.mp4"):
        with pytest.raises(MediaError, match="is not a file"):
            probe(tmp_path / name)
    with pytest.raises(SourceError, match="no such file"):
        probe(tmp_path / "missing.mp4")


def test_without_the_library_the_remedy_is_an_extra(
    video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match=r"pip install 'intermission\[media\]'"):
        probe(video)


@pytest.mark.parametrize(
    ("tag", "language"),
    [
        ("deu", "deu"),
        ("zh-Hant-TW", "zh-Hant-TW"),
        ('de"\n#EXT-X-KEY:METHOD=NONE\n', None),
        ("de\x1b[31m", None),
        ("d" * 99, None),
    ],
)
def test_a_language_tag_is_a_tag_or_unknown(tag: str, language: str | None, tmp_path: Path) -> None:
    """The file's author writes it, so it may hold anything."""
    info = probe(make(tmp_path / "a.mkv", seconds=1, language=tag))
    assert [stream.language for stream in info.audio] == [language]
