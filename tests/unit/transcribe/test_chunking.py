"""Where the audio is cut: in pauses before the targets, and everywhere covered once."""

from __future__ import annotations

import wave
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from intermission.backends.speech.vad import best_cut, passages
from intermission.pipelines.transcribe import chunking
from intermission.pipelines.transcribe.audio_file import length_ms, read_audio
from intermission.pipelines.transcribe.chunking import ACROSS_MS, AudioRange, split
from intermission.ports.speech import RATE_HZ

SPEECH, PAUSE = [0.9], [0.1]


@pytest.fixture
def audio(tmp_path: Path) -> Callable[[int], Path]:
    """Silence of so many milliseconds."""

    def make(duration_ms: int) -> Path:
        path = tmp_path / f"{duration_ms}.wav"
        with wave.open(str(path), "wb") as wav:
            wav.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
            wav.writeframes(bytes(2 * (duration_ms * RATE_HZ // 1000)))
        return path

    return make


def ranges(path: Path, every_ms: int) -> list[AudioRange]:
    found = split(path, length_ms(path), every_ms, lambda _: None)
    assert found[0].start_ms == 0
    assert found[-1].end_ms == length_ms(path)
    assert all(one.end_ms == other.start_ms for one, other in pairwise(found))
    return found


@pytest.mark.parametrize("duration_ms", [1, 59_999, 60_000, 89_000, 91_000, 240_000, 299_000])
def test_ranges_cover_the_audio_and_are_about_as_long_as_asked(
    audio: Callable[[int], Path], duration_ms: int
) -> None:
    found = ranges(audio(duration_ms), 60_000)
    for one in found[:-1]:
        assert 48_000 <= one.end_ms - one.start_ms <= 60_000
    assert found[-1].end_ms - found[-1].start_ms <= 102_000
    assert len(found) == 1 or found[-1].end_ms - found[-1].start_ms >= 30_000
    # Nothing is heard twice where nobody speaks.
    assert all((one.from_ms, one.to_ms) == (one.start_ms, one.end_ms) for one in found)


def test_no_audio_has_no_ranges(audio: Callable[[int], Path]) -> None:
    assert split(audio(0), 0, 60_000, lambda _: None) == []


def test_where_nobody_pauses_both_sides_hear_across_the_cut(
    audio: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunking, "speech_likelihood", lambda audio: [0.9, 0.8, 0.9] * 10)
    one, two = ranges(audio(20_000), 10_000)
    assert one.to_ms == one.end_ms + ACROSS_MS
    assert two.from_ms == two.start_ms - ACROSS_MS
    assert (one.from_ms, two.to_ms) == (0, 20_000)


def test_the_longest_silence_is_cut_in_its_middle() -> None:
    speech, pause = SPEECH * 10, PAUSE * 8
    likelihood = [*speech, *pause, *speech, *pause, *pause, *speech]
    assert best_cut(likelihood) == (28 + 8, True)


def test_a_pause_within_a_word_is_no_silence() -> None:
    likelihood = SPEECH * 10 + [0.2, 0.1, 0.2] + SPEECH * 10
    assert best_cut(likelihood) == (11.5, False)
    assert best_cut([]) == (0.5, False)


def test_passages_hold_all_the_speech_and_no_long_silence() -> None:
    likelihood = PAUSE * 100 + SPEECH * 500 + PAUSE * 200 + SPEECH * 500 + PAUSE * 100
    one, other = passages(likelihood, 900)
    assert one[0] < 100 < 600 < one[1] < 650
    assert 750 < other[0] < 800 < 1300 < other[1]
    assert passages(PAUSE * 1000, 900) == []
    assert passages([], 900) == []


def test_short_passages_share_a_window() -> None:
    likelihood = (SPEECH * 100 + PAUSE * 100) * 6
    found = passages(likelihood, 900)
    assert len(found) == 2
    assert all(end - start <= 900 for start, end in found)


def test_a_long_passage_is_cut_in_pauses_into_as_few_as_can_be() -> None:
    likelihood = (SPEECH * 90 + PAUSE * 10) * 17
    one, other = found = passages(likelihood, 900)
    assert one[1] == other[0]
    assert likelihood[one[1]] == PAUSE[0]
    assert all(end - start <= 900 for start, end in found)


def test_who_never_pauses_is_heard_in_one_passage() -> None:
    assert passages(SPEECH * 2000, 900) == [(0, 2000)]


def test_a_stretch_of_sound_is_what_there_is_of_it(audio: Callable[[int], Path]) -> None:
    path = audio(1000)
    assert len(read_audio(path, 250, 750)) == RATE_HZ
    assert len(read_audio(path, 900, 5000)) == 2 * RATE_HZ // 10
    assert read_audio(path, 4000, 5000) == b""
