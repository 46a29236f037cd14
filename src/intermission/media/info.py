"""What is known about a media file, and its limits: values only."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from intermission.settings import Settings

WAV_MAX_BYTES = 2**32 - 1
"""A WAV header counts its bytes in 32 bits."""
_LANGUAGE_TAG = re.compile(r"[A-Za-z0-9]{2,8}(-[A-Za-z0-9]{1,8}){0,3}")
"""ISO 639 or BCP 47. The author of a file writes the tag, so it may hold anything."""


@dataclass(frozen=True)
class Limits:
    """What reading a file may cost. A file that needs more is refused with the limit's name."""

    duration_s: int = 24 * 3600
    streams: int = 64
    side_pixels: int = 8192
    """Of each side of a frame."""
    bytes_per_s_min: int = 8
    """A file longer than ten minutes with fewer bytes than this a second lies about its length."""
    memory_bytes: int = 4 * 2**30
    """Address space of the child, libraries included."""
    output_bytes: int = WAV_MAX_BYTES
    wall_s: float = 60.0
    """For opening the file and learning what it is, and for each frame asked for."""
    wall_s_per_media_s: float = 0.5
    """What decoding it whole may take beyond that."""
    slowest_disk_bytes_per_s: int = 5_000_000
    """What reading its bytes may take beyond that."""
    niceness: int = 0
    """The nice value of the child."""
    must_be_protected: bool = False
    """Whether a child refuses to read where Landlock or seccomp is missing."""

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """The limits that a user may raise, as they are set here."""
        return cls(
            duration_s=settings.media_duration_s,
            memory_bytes=settings.media_memory_bytes,
            wall_s=settings.media_wall_s,
            niceness=settings.media_niceness,
            must_be_protected=settings.media_sandbox == "require",
        )

    def open_wall_s(self, size_bytes: int) -> float:
        """How long learning what a file is may take; some must be read to their end for it."""
        return self.wall_s + size_bytes / self.slowest_disk_bytes_per_s

    def whole_wall_s(self, duration_ms: int, size_bytes: int) -> float:
        """How long reading a file from end to end may take."""
        return self.open_wall_s(size_bytes) + duration_ms / 1000 * self.wall_s_per_media_s


@dataclass(frozen=True)
class VideoStream:
    index: int
    codec: str
    width: int
    height: int
    fps: str
    """Exact, as "30000/1001"; "0/1" when unknown."""
    rotation_deg: int
    """How far to turn the frame counter-clockwise to show it upright."""
    frames: int | None
    language: str | None
    attached_picture: bool
    """Cover art, not a video."""


@dataclass(frozen=True)
class AudioStream:
    index: int
    codec: str
    rate_hz: int
    channels: int
    language: str | None


@dataclass(frozen=True)
class MediaInfo:
    duration_ms: int
    start_ms: int
    """The time stamp of the first moment; every other time here is counted from it."""
    container: str
    """libav's name of the demuxer, such as "mov" or "matroska"."""
    size_bytes: int
    video: tuple[VideoStream, ...]
    audio: tuple[AudioStream, ...]

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> MediaInfo:
        """Raises KeyError, TypeError or ValueError for anything but a whole description."""
        video = tuple(VideoStream(**_typed(VideoStream, stream)) for stream in found["video"])
        audio = tuple(AudioStream(**_typed(AudioStream, stream)) for stream in found["audio"])
        numbers = {key: int(found[key]) for key in ("duration_ms", "start_ms", "size_bytes")}
        return cls(**numbers, container=str(found["container"]), video=video, audio=audio)


@dataclass(frozen=True)
class ExtractedAudio:
    samples: int
    duration_ms: int
    skipped_packets: int
    """Corrupt packets left out; silence stands where they were."""
    has_audio: bool
    """False when the file has no audio track; the WAV file is then empty."""


class Frame(NamedTuple):
    """One frame: its time, its size, and its rows of RGB24 without padding."""

    ms: int
    width: int
    height: int
    rgb: bytes


def _typed(cls: type[VideoStream | AudioStream], told: dict[str, Any]) -> dict[str, Any]:
    """What was told, if every field is there and of its type; without a language that is none."""
    types = {"int": int, "str": str, "bool": bool, "None": type(None)}
    for field in fields(cls):
        allowed = tuple(types[name] for name in str(field.type).split(" | "))
        if not isinstance(told[field.name], allowed):
            raise TypeError(f"{field.name} is {told[field.name]!r}")
    if _LANGUAGE_TAG.fullmatch(told["language"] or "") is None:
        return {**told, "language": None}
    return told
