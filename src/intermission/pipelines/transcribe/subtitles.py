"""Words as people read them: sentences for a text, cues of two short lines for a screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from textwrap import wrap

from intermission.ports.speech import Word

LINE_MAX = 42
LINES_MAX = 2
CUE_MAX_MS = 7000
CUE_MIN_MS = 1000
CHARACTERS_PER_S = 17
"""As fast as people read along; a cue that is shorter stays on while nobody speaks."""
PAUSE_MS = 700
"""A silence like this ends a cue."""
BETWEEN_MS = 40
"""As long the screen is empty between two cues, so that a change is seen."""
SEGMENT_PAUSE_MS = 2000
SEGMENT_MAX = 240
"""A sentence without an end is broken at this many characters."""
_ENDS = tuple(".!?…。！？")  # noqa: RUF001
_CLAUSES = (*_ENDS, *",;:、，；：")  # noqa: RUF001


@dataclass(frozen=True)
class Cue:
    """What stands on the screen from one moment to another."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]


def text_of(words: Sequence[Word]) -> str:
    return "".join(word.text for word in words).strip()


def segments(words: Sequence[Word]) -> Iterator[list[Word]]:
    """Sentences, as far as the punctuation and the pauses tell."""
    run: list[Word] = []
    for word in words:
        if run and (
            run[-1].text.endswith(_ENDS)
            or word.start_ms - run[-1].end_ms > SEGMENT_PAUSE_MS
            or len(text_of([*run, word])) > SEGMENT_MAX
        ):
            yield run
            run = []
        run.append(word)
    if run:
        yield run


def cues(words: Sequence[Word]) -> list[Cue]:
    """Cues of at most two lines, each on for long enough to be read where there is time."""
    sentences = ([piece for word in one for piece in _pieces(word)] for one in segments(words))
    runs = [run for sentence in sentences for run in _runs(sentence)]
    made: list[Cue] = []
    for run, following in zip_longest(runs, runs[1:]):
        lines = broken(text_of(run))
        if not lines:
            continue
        start_ms, spoken_ms = run[0].start_ms, run[-1].end_ms
        wanted_ms = max(CUE_MIN_MS, 1000 * sum(map(len, lines)) // CHARACTERS_PER_S)
        end_ms = min(max(spoken_ms, start_ms + wanted_ms), start_ms + CUE_MAX_MS)
        if following is not None:
            end_ms = min(end_ms, following[0].start_ms - BETWEEN_MS)
        made.append(Cue(start_ms, max(end_ms, start_ms + 1), tuple(lines)))
    return made


def _pieces(word: Word) -> Iterator[Word]:
    """The word, or lines of it where it is longer than a cue; they share its time by length."""
    text, took_ms = word.text.strip(), word.end_ms - word.start_ms
    if len(broken(text)) <= LINES_MAX:
        yield word
        return
    for start in range(0, len(text), LINE_MAX):
        end = min(start + LINE_MAX, len(text))
        yield replace(
            word,
            start_ms=word.start_ms + took_ms * start // len(text),
            end_ms=word.start_ms + took_ms * end // len(text),
            text=text[start:end] if start else f" {text[:end]}",
        )


def _runs(segment: Sequence[Word]) -> Iterator[list[Word]]:
    """A sentence in pieces that fit on the screen, broken after a clause where there is one."""
    run: list[Word] = []
    for word in segment:
        while run and (word.start_ms - run[-1].end_ms > PAUSE_MS or not _fits([*run, word])):
            at = _clause(run) if word.start_ms - run[-1].end_ms <= PAUSE_MS else len(run)
            yield run[:at]
            run = run[at:]
        run.append(word)
    if run:
        yield run


def _fits(run: Sequence[Word]) -> bool:
    return len(broken(text_of(run))) <= LINES_MAX and run[-1].end_ms - run[0].start_ms <= CUE_MAX_MS


def _clause(run: Sequence[Word]) -> int:
    """After how many words to break: after the last clause in the second half, or after all."""
    for n in range(len(run), len(run) // 2, -1):
        if run[n - 1].text.endswith(_CLAUSES):
            return n
    return len(run)


def broken(text: str) -> list[str]:
    """A text as lines of nearly equal length, as few as it takes."""
    lines = wrap(text, LINE_MAX)
    if len(lines) != LINES_MAX:
        return lines
    for width in range((len(text) + 1) // 2, LINE_MAX):
        evener = wrap(text, width)
        if len(evener) == LINES_MAX:
            return evener
    return lines
