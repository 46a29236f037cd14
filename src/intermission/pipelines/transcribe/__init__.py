"""`transcribe`: speech to text, chunk by chunk, merged without losing or doubling a word.

    audio ─ chunks ─┬─ transcribe ─┬─ merge
    └───── detect ──┘              │
    └──────────────────────────────┘

The audio is extracted from the source once and split at pauses. Every chunk is transcribed by
itself, and the words are merged with times that count from the beginning of the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intermission import Pipeline
from intermission.backends.speech import engine as speech_engine
from intermission.pipelines.media_files import MEDIA_FILES
from intermission.pipelines.transcribe import steps


def _resolve(params: dict[str, Any]) -> Mapping[str, Any]:
    """Settle which weights these are, so that other weights make another job."""
    weights = speech_engine(params["engine"]).identify(params["model"], params["language"])
    return {"engine": weights.engine, "model": weights.model}


transcribe = Pipeline(
    "transcribe",
    [steps.audio, steps.chunks, steps.detect, steps.transcribe, steps.merge],
    output="transcripts",
    accepts=MEDIA_FILES,
    resolve=_resolve,
)
