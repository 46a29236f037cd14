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
