"""Extracted audio: its form, its times, and what becomes of damage."""

from __future__ import annotations

import wave
from pathlib import Path

import pytest

from intermission.errors import EnvironmentFault, MediaError
from intermission.media import Limits, extract_audio
from media_samples import loudness, make

LOUD, QUIET = 2000, 50


def test_a_video_gives_16_khz_mono(video: Path, tmp_path: Path) -> None:
    fractions: list[float] = []
    done = extract_audio(video, tmp_path / "a.wav", on_progress=fractions.append)
    with wave.open(str(tmp_path / "a.wav")) as read:
        assert (read.getnchannels(), read.getsampwidth(), read.getframerate()) == (1, 2, 16_000)
        assert read.getnframes() == done.samples
    assert abs(done.duration_ms - 2000) < 50
    assert (done.skipped_packets, done.has_audio) == (0, True)
    assert loudness(tmp_path / "a.wav", 0.1, 1.9) > LOUD
    assert fractions
    assert all(0 <= fraction <= 1 for fraction in fractions)


def test_another_rate(video: Path, tmp_path: Path) -> None:
    done = extract_audio(video, tmp_path / "a.wav", rate_hz=8000)
    assert abs(done.samples - 16_000) < 400


def test_no_audio_track_is_an_empty_file_and_no_error(tmp_path: Path) -> None:
    path = make(tmp_path / "mute.mp4", audio=None, seconds=1)
    done = extract_audio(path, tmp_path / "a.wav")
    assert (done.has_audio, done.samples, done.duration_ms) == (False, 0, 0)
    with wave.open(str(tmp_path / "a.wav")) as read:
        assert read.getnframes() == 0


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
def test_audio_that_starts_late_keeps_its_time(name: str, tmp_path: Path) -> None:
    path = make(tmp_path / name, audio_from_s=0.7)
    done = extract_audio(path, tmp_path / "a.wav")
    assert loudness(tmp_path / "a.wav", 0, 0.6) < QUIET
    assert loudness(tmp_path / "a.wav", 0.75, 1.9) > LOUD
    assert abs(done.duration_ms - 2000) < 90


def test_a_gap_is_silence_and_what_follows_keeps_its_time(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mkv", audio="pcm_s16le", gap=(0.5, 1.2), silent_from_s=1.5)
    done = extract_audio(path, tmp_path / "a.wav")
    assert loudness(tmp_path / "a.wav", 0.1, 0.45) > LOUD
    assert loudness(tmp_path / "a.wav", 0.55, 1.15) < QUIET
    assert loudness(tmp_path / "a.wav", 1.25, 1.45) > LOUD
    assert loudness(tmp_path / "a.wav", 1.55, 1.95) < QUIET
    assert abs(done.duration_ms - 2000) < 50


def test_corrupt_packets_are_counted_and_leave_silence(tmp_path: Path) -> None:
    path = make(tmp_path / "a.m4a", video=None)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 2500] = bytes(2500)
    path.write_bytes(data)
    done = extract_audio(path, tmp_path / "a.wav")
    assert 5 < done.skipped_packets < 20
    assert loudness(tmp_path / "a.wav", 0.1, 0.8) > LOUD
    middle_s = [0.8 + n / 100 for n in range(50)]
    assert min(loudness(tmp_path / "a.wav", s, s + 0.05) for s in middle_s) < QUIET
    assert abs(done.duration_ms - 2000) < 50
    assert loudness(tmp_path / "a.wav", 1.5, 1.9) > LOUD


def test_audio_that_is_nothing_but_damage_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mkv", video=None, audio="flac", options={"cluster_time_limit": "1"})
    data = bytearray(path.read_bytes())
    while (at := data.find(b"\xff\xf8")) >= 0:  # the mark of a FLAC frame
        data[at : at + 2] = b"\x00\x00"
    path.write_bytes(data)
    with pytest.raises(MediaError, match=r"too damaged: [0-9]+ of [0-9]+ audio packets"):
        extract_audio(path, tmp_path / "a.wav")
    assert not (tmp_path / "a.wav").exists()


@pytest.mark.parametrize("name", ["a.mkv", "a.flac", "a.wav", "a.mp4"])
def test_a_file_that_lost_its_second_half_is_refused(name: str, tmp_path: Path) -> None:
    audio = {"a.flac": "flac", "a.wav": "pcm_s16le"}.get(name, "aac")
    video = "libx264" if audio == "aac" else None
    options = {"movflags": "faststart"} if name == "a.mp4" else {}
    path = make(tmp_path / name, video=video, audio=audio, options=options)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(MediaError, match=rf"{name} ends after [0-9.]+ of [0-9.]+ (s|bytes)\."):
        extract_audio(path, tmp_path / "out.wav")
    assert not (tmp_path / "out.wav").exists()


def cut_in_half(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


@pytest.mark.parametrize("rate_hz", [44_100, 16_000])
def test_an_mp3_that_lost_its_second_half_is_refused(rate_hz: int, tmp_path: Path) -> None:
    """MPEG-1 and MPEG-2, which keep the number of their frames in different places."""
    path = make(tmp_path / "a.mp3", video=None, audio="libmp3lame", seconds=8, rate_hz=rate_hz)
    assert abs(extract_audio(path, tmp_path / "out.wav").duration_ms - 8000) < 100
    with pytest.raises(MediaError, match=r"a\.mp3 ends after [34]\.[0-9] of 8\.[0-9] s\."):
        extract_audio(cut_in_half(path), tmp_path / "out.wav")


def test_an_mp3_with_a_vbri_header_is_refused_too(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp3", video=None, audio="libmp3lame", seconds=8)
    data = bytearray(path.read_bytes())
    info = data.index(b"Info")
    frames = data[info + 8 : info + 12]
    start = info - 21  # a header, and what a frame of one channel keeps before it
    data[start + 36 : start + 62] = b"VBRI" + bytes(6) + bytes(4) + frames + bytes(8)
    data[info : info + 4] = bytes(4)
    path.write_bytes(data)
    assert extract_audio(path, tmp_path / "out.wav").duration_ms > 7900
    with pytest.raises(MediaError, match=r"a\.mp3 ends after [34]\.[0-9] of 8\.[0-9] s\."):
        extract_audio(cut_in_half(path), tmp_path / "out.wav")


def test_an_mp3_that_does_not_tell_its_length_is_read_to_its_end(tmp_path: Path) -> None:
    options = {"write_xing": "0"}
    path = make(tmp_path / "a.mp3", video=None, audio="libmp3lame", seconds=8, options=options)
    done = extract_audio(cut_in_half(path), tmp_path / "out.wav")
    assert abs(done.duration_ms - 4000) < 100


def wav_claiming(path: Path, riff_bytes: int | None, data_bytes: int | None) -> Path:
    """Two seconds; the header says something else where it is given."""
    data = bytearray(make(path, video=None, audio="pcm_s16le").read_bytes())
    at = data.index(b"data") + 4
    if riff_bytes is not None:
        data[4:8] = riff_bytes.to_bytes(4, "little")
    if data_bytes is not None:
        data[at : at + 4] = data_bytes.to_bytes(4, "little")
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("riff_bytes", [None, 88_200 + 70])
def test_a_wav_that_counts_half_of_its_audio_is_refused(
    riff_bytes: int | None, tmp_path: Path
) -> None:
    path = wav_claiming(tmp_path / "a.wav", riff_bytes, 88_200)
    with pytest.raises(MediaError, match=r"a\.wav has audio after the 88200 bytes .* counts"):
        extract_audio(path, tmp_path / "out.wav")


@pytest.mark.parametrize(
    "tail",
    [
        b"LIST" + (6000).to_bytes(4, "little") + b"INFO" + bytes(5996),
        b"ID3\x04\0\0\0\0\x7f\x00" + b"x" * 16256,
        bytes(9000),
    ],
    ids=["chunk", "tag", "padding"],
)
def test_what_may_follow_the_audio_of_a_wav_is_no_audio(tail: bytes, tmp_path: Path) -> None:
    path = make(tmp_path / "a.wav", video=None, audio="pcm_s16le")
    path.write_bytes(path.read_bytes() + tail)
    assert abs(extract_audio(path, tmp_path / "out.wav").duration_ms - 2000) < 50


@pytest.mark.parametrize(
    "unknown", [(0, 0), (0xFFFFFFFF, 0xFFFFFFFF), (0x7FFFF024, 0x7FFFF000), (None, 0)]
)
def test_a_wav_that_was_streamed_is_read_whole(
    unknown: tuple[int | None, int], tmp_path: Path
) -> None:
    whole = extract_audio(wav_claiming(tmp_path / "a.wav", None, None), tmp_path / "whole.wav")
    done = extract_audio(wav_claiming(tmp_path / "b.wav", *unknown), tmp_path / "out.wav")
    assert (done.samples, done.skipped_packets) == (whole.samples, 0)
    assert (tmp_path / "out.wav").read_bytes() == (tmp_path / "whole.wav").read_bytes()


def test_the_size_of_the_output_is_limited(video: Path, tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="a WAV file of more than 9978 samples, its limit"):
        extract_audio(video, tmp_path / "a.wav", limits=Limits(output_bytes=20_000))


def test_a_full_disk_is_the_machines_fault(video: Path, tmp_path: Path) -> None:
    full = tmp_path / "full.wav"
    full.symlink_to("/dev/full")
    with pytest.raises(EnvironmentFault, match=r"writing the audio of video.mp4 failed"):
        extract_audio(video, full)


def test_an_output_that_cannot_be_made_is_the_machines_fault(video: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"writing .* failed"):
        extract_audio(video, tmp_path / "missing" / "a.wav")
