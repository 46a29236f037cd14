"""Where to cut: after at most so many seconds, in the longest pause before that.

Only the sound before the targets is looked at. Where nobody pauses, the cut is made at the
quietest place, and both sides hear across it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from intermission.backends.speech.vad import FRAME_MS, best_cut, speech_likelihood
from intermission.pipelines.transcribe.sound import read_sound

REACH = 0.2
"""How far before its target a cut may lie, of a piece's length."""
ACROSS_MS = 3000
"""How far each side hears beyond a cut through speech."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the sound, and the stretch to listen to."""

    start_ms: int
    end_ms: int
    from_ms: int
    to_ms: int


@dataclass(frozen=True, slots=True)
class Cut:
    at_ms: int
    in_silence: bool


def cut(
    sound: Path, duration_ms: int, every_ms: int, progress: Callable[[float], None]
) -> list[Piece]:
    """Pieces of about this length, which cover the sound without gap or overlap."""
    cuts = list(_cuts(sound, duration_ms, every_ms, progress))
    edges = [Cut(0, True), *cuts, Cut(duration_ms, True)]
    return [
        Piece(
            left.at_ms,
            right.at_ms,
            left.at_ms if left.in_silence else max(0, left.at_ms - ACROSS_MS),
            right.at_ms if right.in_silence else min(duration_ms, right.at_ms + ACROSS_MS),
        )
        for left, right in pairwise(edges)
        if right.at_ms > left.at_ms
    ]


def _cuts(
    sound: Path, duration_ms: int, every_ms: int, progress: Callable[[float], None]
) -> Iterator[Cut]:
    reach_ms = round(every_ms * REACH)
    last_ms = 0
    # What is left after the last cut is at least half a piece.
    while (target_ms := last_ms + every_ms) < duration_ms - every_ms // 2:
        from_ms = target_ms - reach_ms
        at, in_silence = best_cut(speech_likelihood(read_sound(sound, from_ms, target_ms)))
        last_ms = from_ms + round(at * FRAME_MS)
        yield Cut(last_ms, in_silence)
        progress(last_ms / duration_ms)
