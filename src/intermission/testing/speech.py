"""`SpeechContract`: what every speech engine must do, as a pytest class.

    class TestMyEngine(SpeechContract):
        def load(self) -> Speech: ...
        def audio(self) -> bytes: ...   # somebody speaks, for a few seconds
        text = "what is said there"

The suite asks for words that are mostly right, in order, inside the audio, and the same every
time. How good an engine is, is for a benchmark.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from itertools import pairwise

import pytest

from intermission.ports.speech import AUTO, BYTES_PER_SAMPLE, RATE_HZ, Speech, Transcription

ALIKE = 0.7


class SpeechContract:
    """Override `load`, `audio` and `text`, and pytest runs every check on your engine."""

    text: str
    language = "en"

    def load(self) -> Speech:
        raise NotImplementedError

    def audio(self) -> bytes:
        """Somebody says `text`: mono, 16,000 samples a second, 16 bits each."""
        raise NotImplementedError

    @pytest.fixture
    def speech(self) -> Speech:
        return self.load()

    def transcribe(
        self, speech: Speech, audio: bytes, language: str | None = None
    ) -> Transcription:
        spoken = self.language if language is None else language
        return speech.transcribe(audio, language=spoken, beam_size=2, key="a-task")

    def test_it_hears_what_is_said(self, speech: Speech) -> None:
        heard = self.transcribe(speech, self.audio())
        alike = SequenceMatcher(None, _names(_text(heard)), _names(self.text)).ratio()
        assert alike > ALIKE, _text(heard)
        assert heard.language == self.language

    def test_words_are_in_order_and_inside_the_audio(self, speech: Speech) -> None:
        words = self.transcribe(speech, self.audio()).words
        assert words
        end_ms = len(self.audio()) // BYTES_PER_SAMPLE * 1000 // RATE_HZ
        for word in words:
            assert 0 <= word.start_ms <= word.end_ms <= end_ms
            assert word.text.strip()
            assert word.confidence is None or 0 <= word.confidence <= 1
        assert all(one.start_ms <= other.start_ms for one, other in pairwise(words))

    def test_the_same_audio_gives_the_same_words(self, speech: Speech) -> None:
        first = self.transcribe(speech, self.audio())
        self.transcribe(speech, self.audio()[: RATE_HZ * BYTES_PER_SAMPLE])
        assert self.transcribe(speech, self.audio()) == first
        assert self.transcribe(self.load(), self.audio()) == first

    @pytest.mark.parametrize("seconds", [0, 1, 31])
    def test_silence_has_no_words(self, speech: Speech, seconds: int) -> None:
        silence = bytes(seconds * RATE_HZ * BYTES_PER_SAMPLE)
        assert self.transcribe(speech, silence).words == ()

    def test_it_tells_the_language(self, speech: Speech) -> None:
        assert speech.detect(self.audio()) in (self.language, AUTO)
        assert self.transcribe(speech, self.audio(), AUTO).language == self.language


def _text(heard: Transcription) -> str:
    return "".join(word.text for word in heard.words)


def _names(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
