"""Reading and encoding media in a sandbox: a child process that can touch nothing else.

`probe`, `extract_audio` and `frames` start one child each, hand it the open file
and believe nothing it says without looking. This package knows nothing of jobs, and no libav
code ever runs in the process that calls it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intermission.media.info import (
        AudioStream,
        ExtractedAudio,
        Frame,
        Limits,
        MediaInfo,
        VideoStream,
    )
    from intermission.media.reading import extract_audio, frames, probe

__all__ = [
    "AudioStream",
    "ExtractedAudio",
    "Frame",
    "Limits",
    "MediaInfo",
    "VideoStream",
    "extract_audio",
    "frames",
    "probe",
]

_CALLS = ("extract_audio", "frames", "probe")


def __getattr__(name: str) -> Any:
    # Late, because the child imports this package too and needs none of the caller's side.
    if name not in __all__:
        raise AttributeError(f"module 'intermission.media' has no attribute {name!r}")
    home = "reading" if name in _CALLS else "info"
    return getattr(import_module(f"intermission.media.{home}"), name)
