"""Joining spans: no word is lost, doubled or split, wherever the cut fell."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from intermission.pipelines.transcribe.overlap_merge import TranscribedChunk, merge_chunks
from intermission.ports.speech import Word

TALK = (
    "so what is luck luck is defined as success or failure apparently caused by chance apparently "
    "that is the operative word it looks like it is chance because we rarely see all the levers "
    "that come into play to make people lucky"
)
TEXT = TALK.split()
WORD_MS = 400


def spoken(texts: Sequence[str], start_ms: int = 0) -> list[Word]:
    return [
        Word(start_ms + n * WORD_MS, start_ms + n * WORD_MS + 350, f" {text}", 0.9)
        for n, text in enumerate(texts)
    ]


def heard(words: list[Word], from_ms: int, to_ms: int, rng: random.Random) -> list[Word]:
    """What somebody hears who listens from here to there: times are not quite the same, and a
    word that is cut off at an edge comes out wrong, or not at all."""
    found: list[Word] = []
    for word in words:
        if word.end_ms <= from_ms or word.start_ms >= to_ms:
            continue
        whole = from_ms <= word.start_ms and word.end_ms <= to_ms
        text = word.text if whole else rng.choice([word.text[:2], " uh", word.text])
        by_ms = rng.randint(-120, 120)
        start_ms = max(from_ms, word.start_ms + by_ms)
        end_ms = max(start_ms, min(to_ms, word.end_ms + by_ms))
        if whole or rng.random() < 0.7:
            found.append(Word(start_ms, end_ms, text, 0.5))
    return found


def texts(words: list[Word]) -> list[str]:
    return [word.text.strip() for word in words]


@pytest.mark.parametrize("seed", range(200))
def test_every_word_once_across_cuts_through_speech(seed: int) -> None:
    rng = random.Random(seed)
    words = spoken(TEXT)
    end_ms = words[-1].end_ms
    cuts = sorted(rng.sample(range(4000, end_ms - 4000), 2))
    if cuts[1] - cuts[0] < 4000:
        cuts = cuts[:1]
    edges = [0, *cuts, end_ms]
    chunks = [
        TranscribedChunk(start, end, from_ms, to_ms, heard(words, from_ms, to_ms, rng))
        for start, end in pairwise(edges)
        for from_ms, to_ms in [(max(0, start - 3000), min(end_ms, end + 3000))]
    ]
    assert texts(merge_chunks(chunks)) == TEXT


def test_spans_cut_in_silence_are_put_side_by_side() -> None:
    one = TranscribedChunk(0, 4000, 0, 4000, spoken(["no", "no", "no"]))
    two = TranscribedChunk(4000, 9000, 4000, 9000, spoken(["no", "yes"], 4200))
    assert texts(merge_chunks([two, one])) == ["no", "no", "no", "no", "yes"]


def test_without_a_common_word_the_cut_decides() -> None:
    one = TranscribedChunk(0, 2000, 0, 3000, spoken(["a", "b", "c", "d", "e", "f", "g"]))
    two = TranscribedChunk(2000, 4000, 1000, 4000, spoken(["t", "u", "v", "w", "x", "y"], 1000))
    assert texts(merge_chunks([one, two])) == ["a", "b", "c", "d", "e", "w", "x", "y"]


def test_a_span_that_heard_nothing_loses_nothing() -> None:
    one = TranscribedChunk(0, 2000, 0, 3000, spoken(["a", "b", "c"]))
    two = TranscribedChunk(2000, 4000, 1000, 4000, [])
    three = TranscribedChunk(4000, 6000, 3000, 6000, spoken(["d"], 4500))
    assert texts(merge_chunks([one, two, three])) == ["a", "b", "c", "d"]


def test_times_never_go_back() -> None:
    one = TranscribedChunk(
        0, 1000, 0, 1000, [Word(0, 1200, " a", None), Word(1100, 1150, " b", None)]
    )
    two = TranscribedChunk(1000, 2000, 1000, 2000, [Word(1010, 1020, " c", None)])
    merged = merge_chunks([one, two])
    assert [(word.start_ms, word.end_ms) for word in merged] == [
        (0, 1200),
        (1100, 1150),
        (1100, 1100),
    ]


def test_a_spans_own_words_are_those_in_it() -> None:
    chunk = TranscribedChunk(1000, 2000, 0, 3000, spoken(["a", "b", "c", "d", "e", "f"]))
    assert texts(chunk.own()) == ["d", "e"]
