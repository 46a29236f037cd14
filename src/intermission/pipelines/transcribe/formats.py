"""A transcript as files: txt, srt, vtt, tsv and json. Equal words give equal bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from intermission.pipelines.transcribe.subtitles import Cue, cues, segments, text_of
from intermission.ports.speech import Word

ALL = "all"


@dataclass(frozen=True)
class Transcript:
    """The words of a source, and what made them."""

    words: Sequence[Word]
    language: str
    duration_ms: int
    engine: str
    model: str
    source_name: str
    fingerprint: str


def write(transcript: Transcript, formats: str, out: Callable[[str], Path]) -> list[Path]:
    """Write the transcript in these formats; the files."""
    paths: list[Path] = []
    for name in _names(formats):
        path = out(f"transcript.{name}")
        path.write_text(_WRITERS[name](transcript), encoding="utf-8")
        paths.append(path)
    return paths


def _txt(transcript: Transcript) -> str:
    return "".join(f"{text_of(segment)}\n" for segment in segments(transcript.words))


def _srt(transcript: Transcript) -> str:
    found = cues(transcript.words)
    return "".join(f"{n}\n{_timed(cue, ',')}\n\n" for n, cue in enumerate(found, 1))


def _vtt(transcript: Transcript) -> str:
    escaped = (_timed(cue, ".", escape=True) for cue in cues(transcript.words))
    return "WEBVTT\n\n" + "".join(f"{cue}\n\n" for cue in escaped)


def _tsv(transcript: Transcript) -> str:
    rows = [
        f"{segment[0].start_ms}\t{segment[-1].end_ms}\t{text_of(segment)}\n"
        for segment in segments(transcript.words)
    ]
    return "start\tend\ttext\n" + "".join(rows)


def _json(transcript: Transcript) -> str:
    document = {
        "text": text_of(transcript.words),
        "language": transcript.language,
        "duration_ms": transcript.duration_ms,
        "engine": transcript.engine,
        "model": transcript.model,
        "source": {"name": transcript.source_name, "fingerprint": transcript.fingerprint},
        "segments": [_segment(n, segment) for n, segment in enumerate(segments(transcript.words))],
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _segment(n: int, words: Sequence[Word]) -> dict[str, Any]:
    return {
        "id": n,
        "start_ms": words[0].start_ms,
        "end_ms": words[-1].end_ms,
        "text": text_of(words),
        "words": [
            {
                "start_ms": word.start_ms,
                "end_ms": word.end_ms,
                "text": word.text.strip(),
                "confidence": word.confidence,
            }
            for word in words
        ],
    }


def _timed(cue: Cue, point: str, *, escape: bool = False) -> str:
    lines = "\n".join(cue.lines)
    if escape:
        lines = lines.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"{_time(cue.start_ms, point)} --> {_time(cue.end_ms, point)}\n{lines}"


def _time(ms: int, point: str) -> str:
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{point}{ms:03d}"


_WRITERS = {"txt": _txt, "srt": _srt, "vtt": _vtt, "tsv": _tsv, "json": _json}


def _names(formats: str) -> list[str]:
    return list(_WRITERS) if formats == ALL else formats.split(",")


def _checked(formats: str) -> str:
    """Each once, in our order, so that `srt,txt` and `txt, srt` are the same job."""
    asked = {name.strip() for name in formats.lower().split(",")}
    if unknown := asked - {ALL, *_WRITERS}:
        raise ValueError(f"there is no format {', '.join(sorted(unknown))}")
    every = ALL in asked or asked == set(_WRITERS)
    return ALL if every else ",".join(name for name in _WRITERS if name in asked)


Formats = Annotated[
    str,
    AfterValidator(_checked),
    Field(description=f"{ALL}, or some of {','.join(_WRITERS)}"),
]
