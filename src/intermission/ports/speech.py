"""Speech to text as a pipeline sees it: sound in, words with times out.

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
    """One word as it was heard, with its punctuation. Times count from the sound's beginning."""

    start_ms: int
    end_ms: int
    text: str
    """With the space before it, where there is one: texts of words put together are the text."""
    confidence: float | None
    """From 0 to 1; None where the engine does not tell."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What an engine made of a piece of sound."""

    language: str
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """Which engine and which model these are, to the version: what decides the words."""

    engine: str
    model: str


class Speech(Protocol):
    """A loaded model. One thread uses it at a time."""

    def hear(self, sound: bytes, *, language: str, beam_size: int, key: str) -> Heard:
        """The words in the sound, in order. Equal sound and options give equal words.

        `key` is equal for every attempt at the same task, for an engine that is paid by the call.
        """
        ...

    def detect(self, sound: bytes) -> str:
        """The language that is spoken, as its code; `auto` where only hearing it would tell."""
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
