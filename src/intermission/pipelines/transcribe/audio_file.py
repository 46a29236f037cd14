"""Reading parts of the audio that was extracted from a source."""

from __future__ import annotations

import wave
from pathlib import Path

from intermission.ports.speech import RATE_HZ


def length_ms(path: Path) -> int:
    with wave.open(str(path), "rb") as wav:
        return wav.getnframes() * 1000 // RATE_HZ


def read_audio(path: Path, from_ms: int, to_ms: int) -> bytes:
    """The samples between two times, as far as there are any."""
    first, last = from_ms * RATE_HZ // 1000, to_ms * RATE_HZ // 1000
    with wave.open(str(path), "rb") as wav:
        wav.setpos(min(max(0, first), wav.getnframes()))
        return wav.readframes(max(0, last - first))
