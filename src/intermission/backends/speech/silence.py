"""Where somebody speaks: a likelihood for every short frame of sound.

The detector is the small network that comes with faster-whisper; without that package, loudness
has to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from intermission.backends.speech.whisper import as_samples

if TYPE_CHECKING:
    import numpy as np

FRAME_SAMPLES = 512


def speech_likelihood(sound: bytes) -> Sequence[float]:
    """How likely somebody speaks, from 0 to 1, in every whole frame."""
    import numpy as np

    samples = as_samples(sound)
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
