"""The WAV writer: what it writes is what the standard library reads."""

from __future__ import annotations

import os
import wave
from pathlib import Path

import pytest

from intermission.media import wav


def test_the_standard_library_reads_it_back(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    pcm = os.urandom(2 * 100_000)
    with path.open("wb") as file:
        writer = wav.WavWriter(file.fileno(), 16_000)
        writer.silence(70_000)
        writer.write(pcm)
        writer.finish()
    with wave.open(str(path)) as read:
        assert (read.getnchannels(), read.getsampwidth(), read.getframerate()) == (1, 2, 16_000)
        assert read.readframes(200_000) == bytes(140_000) + pcm
    assert writer.samples == 170_000
    assert path.stat().st_size == wav.file_bytes(170_000)


def test_an_unfinished_file_is_no_wav_file(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with path.open("wb") as file:
        wav.WavWriter(file.fileno(), 16_000).silence(100_000)
    with pytest.raises((wave.Error, EOFError)), wave.open(str(path)):
        pass


def test_the_longest_file_still_fits_its_header() -> None:
    samples = wav.max_samples(2**40)
    assert int.from_bytes(wav.header(samples, 16_000)[4:8], "little") <= 2**32 - 1
    with pytest.raises(Exception, match="format requires"):
        wav.header(samples + 18, 16_000)


def test_a_disk_that_refuses_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.touch()
    with path.open("rb") as file, pytest.raises(wav.NotWritten, match="Bad file descriptor"):
        wav.WavWriter(file.fileno(), 16_000).finish()
