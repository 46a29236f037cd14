"""Whether the words of a transcript are to be trusted, as far as their engine tells."""

from __future__ import annotations

from collections.abc import Sequence

from intermission.ports.speech import Word

LOW = 0.65
"""Clear speech has 0.8 to 0.95 with the smallest model, speech it does not understand about 0.5."""
WORDS_MIN = 10
"""Fewer words say nothing about a language."""


def low_confidence(words: Sequence[Word]) -> float | None:
    """The mean confidence of the words where it is low; None where it is not, or is not known."""
    known = [word.confidence for word in words if word.confidence is not None]
    if len(known) < WORDS_MIN:
        return None
    mean = sum(known) / len(known)
    return mean if mean < LOW else None
