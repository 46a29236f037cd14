"""Where to split the audio: after at most so many seconds, in the longest pause before that.

Only the audio shortly before each target is examined. Where nobody pauses, the cut is at the
quietest place, and the chunks on both sides read beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from intermission.backends.speech.vad import FRAME_MS, best_cut, speech_likelihood
from intermission.pipelines.transcribe.audio_file import read_audio

REACH = 0.2
"""How far before its target a cut may be, as a share of a chunk's length."""
ACROSS_MS = 3000
"""How far the chunks on both sides read beyond a cut through speech."""


@dataclass(frozen=True, slots=True)
class AudioRange:
    """A range of the audio, and the range to read."""

    start_ms: int
    end_ms: int
    from_ms: int
    to_ms: int


@dataclass(frozen=True, slots=True)
class Cut:
    at_ms: int
    in_silence: bool


def split(
    audio: Path, duration_ms: int, every_ms: int, progress: Callable[[float], None]
) -> list[AudioRange]:
    """Ranges of about this length, which cover the audio without gap or overlap."""
    cuts = list(_cuts(audio, duration_ms, every_ms, progress))
    edges = [Cut(0, True), *cuts, Cut(duration_ms, True)]
    return [
        AudioRange(
            left.at_ms,
            right.at_ms,
            left.at_ms if left.in_silence else max(0, left.at_ms - ACROSS_MS),
            right.at_ms if right.in_silence else min(duration_ms, right.at_ms + ACROSS_MS),
        )
        for left, right in pairwise(edges)
        if right.at_ms > left.at_ms
    ]


def _cuts(
    audio: Path, duration_ms: int, every_ms: int, progress: Callable[[float], None]
) -> Iterator[Cut]:
    reach_ms = round(every_ms * REACH)
    last_ms = 0
    # The range after the last cut is at least half as long as the others.
    while (target_ms := last_ms + every_ms) < duration_ms - every_ms // 2:
        from_ms = target_ms - reach_ms
        at, in_silence = best_cut(speech_likelihood(read_audio(audio, from_ms, target_ms)))
        last_ms = from_ms + round(at * FRAME_MS)
        yield Cut(last_ms, in_silence)
        progress(last_ms / duration_ms)
