"""Speech to text as a pipeline sees it: audio in, words with times out.

Sound is mono, 16,000 samples a second, as the bytes of signed 16-bit little-endian numbers.
Engines raise `TaskError` for what another attempt may mend, `Permanent` for what none can, and
`EnvironmentFault` for what the machine lacks; never anything of their library's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

RATE_HZ = 16_000
BYTES_PER_SAMPLE = 2
AUTO = "auto"
"""In place of a language: whichever is spoken."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word as it was spoken, with its punctuation. Times count from the audio's beginning."""

    start_ms: int
    end_ms: int
    text: str
    """With the space before it, where there is one: texts of words put together are the text."""
    confidence: float | None
    """From 0 to 1; None where the engine does not tell."""


@dataclass(frozen=True, slots=True)
class Transcription:
    """What an engine made of some audio."""

    language: str
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """Which engine and which model these are, to the version: what decides the words."""

    engine: str
    model: str


class Speech(Protocol):
    """A loaded model. One thread uses it at a time."""

    def transcribe(self, audio: bytes, *, language: str, beam_size: int, key: str) -> Transcription:
        """The words in the audio, in order. Equal audio and options give equal words.

        `key` is equal for every attempt at the same task, for an engine that is paid by the call.
        """
        ...

    def detect(self, audio: bytes) -> str:
        """The language that is spoken, as its code; `auto` where it can't tell sooner."""
        ...


class SpeechEngine(Protocol):
    """Finds models. Knowing one is cheap, loading one is not."""

    def identify(self, model: str, language: str) -> Weights:
        """What a model's name stands for on this machine; `""` is the engine's default.

        Raises `EnvironmentFault` when it is not here, `ParameterError` for a language that the
        model does not speak.
        """
        ...

    def load(self, weights: Weights) -> Speech:
        """The model that was identified, or `EnvironmentFault` when another lies there now."""
        ...
