"""The media type of an output, by its name: the same on every machine."""

from __future__ import annotations

from pathlib import PurePosixPath

BINARY = "application/octet-stream"

_TYPES = {
    ".aac": "audio/aac",
    ".csv": "text/csv; charset=utf-8",
    ".flac": "audio/flac",
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".m3u8": "application/vnd.apple.mpegurl",
    ".m4a": "audio/mp4",
    ".m4s": "video/iso.segment",
    ".mkv": "video/x-matroska",
    ".mov": "video/quicktime",
    ".mp3": "audio/mpeg",
    ".mp4": "video/mp4",
    ".mpd": "application/dash+xml",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".png": "image/png",
    ".srt": "application/x-subrip; charset=utf-8",
    ".ts": "video/mp2t",
    ".tsv": "text/tab-separated-values; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".vtt": "text/vtt; charset=utf-8",
    ".wav": "audio/wav",
    ".webm": "video/webm",
    ".webp": "image/webp",
}
"""The same everywhere; a machine's own table may call a script by its name."""


def type_of(name: str) -> str:
    return _TYPES.get(PurePosixPath(name).suffix.lower(), BINARY)
