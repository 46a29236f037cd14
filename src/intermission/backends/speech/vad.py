"""Where somebody speaks and where nobody does, by a likelihood for every short frame of audio.

The detector is the small network that comes with faster-whisper; without that package, loudness
has to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING

from intermission.ports.speech import RATE_HZ

if TYPE_CHECKING:
    import numpy as np

FRAME_SAMPLES = 512
FRAME_MS = FRAME_SAMPLES * 1000 / RATE_HZ
SPEECH = 0.35
"""From this likelihood on, somebody may be speaking."""
PAUSE_FRAMES = ceil(200 / FRAME_MS)
"""A shorter pause may lie within a word."""
_SILENCE_FRAMES = round(2000 / FRAME_MS)
"""A longer silence is not listened to."""
_PAD_FRAMES = round(400 / FRAME_MS)
"""So much of a silence may belong to a soft beginning or end."""


def as_samples(audio: bytes) -> np.ndarray:
    import numpy as np

    return np.frombuffer(audio, dtype="<i2").astype(np.float32) / 32768.0


def speech_likelihood(audio: bytes) -> Sequence[float]:
    """How likely somebody speaks, from 0 to 1, in every whole frame."""
    import numpy as np

    samples = as_samples(audio)
    frames = len(samples) // FRAME_SAMPLES
    if not frames:
        return []
    samples = samples[: frames * FRAME_SAMPLES]
    try:
        from faster_whisper.vad import get_vad_model
    except ImportError:
        return _by_loudness(samples.reshape(frames, FRAME_SAMPLES))
    return [float(one) for one in np.ravel(get_vad_model()(samples))[:frames]]


def _by_loudness(frames: np.ndarray) -> Sequence[float]:
    import numpy as np

    loudness = np.sqrt((frames**2).mean(axis=1))
    loudest = float(np.percentile(loudness, 95)) or 1.0
    return [min(1.0, float(one) / loudest) for one in loudness]


def best_cut(likelihood: Sequence[float]) -> tuple[float, bool]:
    """The middle of the longest pause, or of the frame least like speech; which of them."""
    runs: list[tuple[int, int]] = []
    at = 0
    for silent, frames in groupby(likelihood, lambda one: one < SPEECH):
        count = len(list(frames))
        if silent:
            runs.append((count, at))
        at += count
    count, start = max(runs, key=lambda run: (run[0], -run[1]), default=(0, 0))
    if count >= PAUSE_FRAMES:
        return start + count / 2, True
    quietest = min(range(len(likelihood)), key=likelihood.__getitem__, default=0)
    return quietest + 0.5, False


def passages(likelihood: Sequence[float], longest: int) -> list[tuple[int, int]]:
    """Stretches of frames with all the speech in them, as few as there can be.

    None is longer than `longest`, unless somebody speaks that long without a pause.
    """
    found: list[tuple[int, int]] = []
    for spoken in _spoken(likelihood):
        for start, end in _divided(likelihood, *spoken, longest):
            if found and end - found[-1][0] <= longest:
                start = found.pop()[0]
            found.append((start, end))
    return found


def _spoken(likelihood: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Stretches of speech between long silences, with a little of the silence."""
    start = end = None
    for at, one in enumerate(likelihood):
        if one < SPEECH:
            continue
        if start is None or end is None:
            start = at
        elif at - end > _SILENCE_FRAMES:
            yield max(0, start - _PAD_FRAMES), end + _PAD_FRAMES
            start = at
        end = at + 1
    if start is not None and end is not None:
        yield max(0, start - _PAD_FRAMES), min(len(likelihood), end + _PAD_FRAMES)


def _divided(
    likelihood: Sequence[float], start: int, end: int, longest: int
) -> Iterator[tuple[int, int]]:
    while end - start > longest:
        cut = _pause(likelihood, start, end, longest)
        if cut is None:
            break
        yield start, cut
        start = cut
    yield start, end


def _pause(likelihood: Sequence[float], start: int, end: int, longest: int) -> int | None:
    """Where to end a passage that leaves as few as possible, of about the same length."""
    fewest = ceil((end - start) / longest)
    for parts in (fewest, fewest + 1):
        ideal, reach = start + (end - start) // parts, longest // 6
        first = max(ideal - reach, end - (parts - 1) * longest)
        at, is_pause = best_cut(likelihood[first : min(ideal + reach, start + longest)])
        if is_pause:
            return first + int(at)
    return None
