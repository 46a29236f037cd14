"""Merging the words of neighbouring chunks, so that no word is lost, doubled or split.

A seam in a pause needs no care. Around a seam that cuts through speech both chunks have the same
words: the text changes from one chunk to the other at a word that both have, nearest to the seam.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from intermission.ports.speech import Word

APART_MS = 1000
"""Equal words that lie further apart than this in time are two words."""
TWICE_MAX = 200
"""More words than anyone says in the time that two chunks share."""


@dataclass(frozen=True)
class TranscribedChunk:
    """A chunk: its own part of the audio, the part that was read, and the words found there."""

    start_ms: int
    end_ms: int
    from_ms: int
    to_ms: int
    words: Sequence[Word]

    def own(self) -> list[Word]:
        """The words in the chunk's own part of the audio, by their middles."""
        return [word for word in self.words if self.start_ms <= _middle_ms(word) < self.end_ms]


def merge_chunks(chunks: Sequence[TranscribedChunk]) -> list[Word]:
    """All words in order, each once."""
    merged: list[Word] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.start_ms):
        twice = [word for word in merged[-TWICE_MAX:] if word.end_ms > chunk.from_ms]
        if chunk.from_ms < chunk.start_ms and twice:
            keep, drop = _change_over(twice, chunk.words, chunk.start_ms)
            merged[len(merged) - len(twice) + keep :] = chunk.words[drop:]
        else:
            merged += chunk.words
    return _in_order(merged)


def _change_over(before: list[Word], after: Sequence[Word], cut_ms: int) -> tuple[int, int]:
    """How many words to keep of those before a cut, and how many to drop of those after it."""
    matcher = SequenceMatcher(None, _names(before), _names(after), autojunk=False)
    both = [
        (block.a + n, block.b + n)
        for block in matcher.get_matching_blocks()
        for n in range(block.size)
        if _apart_ms(before[block.a + n], after[block.b + n]) <= APART_MS
    ]
    if both:
        mine, theirs = min(both, key=lambda pair: abs(_middle_ms(before[pair[0]]) - cut_ms))
        return mine + 1, theirs + 1
    return (
        sum(_middle_ms(word) < cut_ms for word in before),
        sum(_middle_ms(word) < cut_ms for word in after),
    )


def _names(words: Sequence[Word]) -> list[str]:
    return [re.sub(r"[\W_]", "", word.text).lower() or word.text.strip() for word in words]


def _middle_ms(word: Word) -> float:
    return (word.start_ms + word.end_ms) / 2


def _apart_ms(one: Word, other: Word) -> float:
    return abs(_middle_ms(one) - _middle_ms(other))


def _in_order(words: Sequence[Word]) -> list[Word]:
    """Times that never go back, as subtitles need them."""
    ordered: list[Word] = []
    last_ms = 0
    for word in words:
        start_ms = max(word.start_ms, last_ms)
        end_ms = max(word.end_ms, start_ms)
        ordered.append(replace(word, start_ms=start_ms, end_ms=end_ms))
        last_ms = start_ms
    return ordered
