"""Subtitles of a video: read when the job is made, so that other subtitles make another job."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from intermission import Source
from intermission.errors import ParameterError
from intermission.pipelines.transcode.languages import tag_of

AUTO = "auto"
TEXT_MAX_BYTES = 4 * 1024**2
_HEAD = "WEBVTT"
_LANGUAGE = re.compile(r"^Language: *(\S+) *$", re.MULTILINE | re.IGNORECASE)
"""A line of the header, as YouTube and others write it."""


def text_of(asked: str, source: Source | None) -> str:
    """The subtitles that were asked for, as WebVTT: from a file, or from beside the source.

    What is such a text already, because the job is known, stays as it is.
    """
    if not asked or asked.startswith(_HEAD):
        return asked
    if asked == AUTO:
        path = _beside(source)
        return _read(path) if path is not None and path.is_file() else ""
    return _read(Path(asked).expanduser())


def language_of(asked: str, text: str, source: Source | None) -> str:
    """The language of these subtitles: by their header, the name of their file or the transcript.

    Empty where none of them tells it.
    """
    found = _LANGUAGE.search(text.partition("\n\n")[0])
    if found is not None and tag_of(found[1]):
        return tag_of(found[1])
    if asked == AUTO:
        path = _beside(source)
        return "" if path is None else _transcribed(path.with_suffix(".json"))
    if not asked or asked.startswith(_HEAD):
        return ""
    return tag_of(Path(Path(asked).stem).suffix.removeprefix("."))


def _transcribed(path: Path) -> str:
    """The language that `transcribe` names beside its subtitles."""
    try:
        document: Any = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return ""
    language = document.get("language") if isinstance(document, dict) else None
    return tag_of(language) if isinstance(language, str) else ""


def _beside(source: Source | None) -> Path | None:
    """Where `transcribe` puts the subtitles of a local file."""
    if source is None or not source.uri.startswith("file:"):
        return None
    stem = source.path.stem
    return source.path.parent / "transcripts" / stem / f"{stem}.vtt"


def _read(path: Path) -> str:
    try:
        # Whoever names another kind of file learns nothing about it.
        text = path.read_bytes().decode("utf-8-sig") if path.suffix == ".vtt" else ""
    except (OSError, UnicodeDecodeError):
        text = ""
    if not text.startswith(_HEAD) or len(text) > TEXT_MAX_BYTES:
        raise ParameterError(
            f"{path} is not a WebVTT file of at most {TEXT_MAX_BYTES >> 20} MiB.",
            remedy="Name a .vtt file, or use auto for the transcript beside the source.",
        )
    return text.replace("\r\n", "\n")
