"""Where to cut: near every so many seconds, in the longest silence there.

Only the sound around the targets is looked at. Where nobody pauses, the cut is made at the
quietest place, and both sides hear across it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from intermission.pipelines.transcribe.sound import read_sound
from intermission.ports.speech import RATE_HZ

REACH = 0.125
"""How far from its target a cut may lie, of a piece's length."""
SPEECH = 0.35
"""From this likelihood on, somebody may be speaking."""
SILENCE_MS = 200
"""A shorter pause may lie within a word."""
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
    from intermission.backends.speech.silence import FRAME_SAMPLES, speech_likelihood

    reach_ms = round(every_ms * REACH)
    frame_ms = FRAME_SAMPLES * 1000 / RATE_HZ
    last_ms = 0
    # What is left after the last cut is at least half a piece.
    while (target_ms := last_ms + every_ms) < duration_ms - every_ms // 2:
        from_ms = target_ms - reach_ms
        likelihood = speech_likelihood(read_sound(sound, from_ms, target_ms + reach_ms))
        at, in_silence = best_cut(likelihood, frame_ms)
        last_ms = from_ms + round(at)
        yield Cut(last_ms, in_silence)
        progress(last_ms / duration_ms)


def best_cut(likelihood: Sequence[float], frame_ms: float) -> tuple[float, bool]:
    """The middle of the longest silence, or of the frame least like speech; which of them."""
    runs: list[tuple[int, int]] = []
    at = 0
    for silent, frames in groupby(likelihood, lambda one: one < SPEECH):
        count = len(list(frames))
        if silent:
            runs.append((count, at))
        at += count
    count, start = max(runs, key=lambda run: (run[0], -run[1]), default=(0, 0))
    if count * frame_ms >= SILENCE_MS:
        return (start + count / 2) * frame_ms, True
    quietest = min(range(len(likelihood)), key=likelihood.__getitem__, default=0)
    return (quietest + 0.5) * frame_ms, False
