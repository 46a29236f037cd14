"""What the caller asks of the child: one value, sent as JSON to its standard input.

Not as an argument: those have a limit, and other users of the machine can read them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from intermission.media.info import Limits
from intermission.media.sniff import Kind
from intermission.media.video_info import EncoderSettings, Section, VideoTrack

Task = Literal["probe", "extract_audio", "frames", "index_frames", "encode", "audio", "thumbnails"]


@dataclass(frozen=True)
class EncodeRequest:
    """Which section of the video to encode, and how."""

    video: VideoTrack
    section: Section
    settings: EncoderSettings

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> EncodeRequest:
        section = Section.from_json(told["section"])
        return cls(VideoTrack(**told["video"]), section, EncoderSettings(**told["settings"]))


@dataclass(frozen=True)
class AudioRequest:
    """Which audio track to encode, and how."""

    stream: int
    rate_hz: int
    layout: str
    kbps: int
    segment_s: int
    samples_min: int = 0
    """Silence follows audio that has fewer samples than this."""


@dataclass(frozen=True)
class ThumbnailRequest:
    """The size of thumbnails, and how many to put on a sheet."""

    width: int
    height: int
    columns: int = 1
    rows: int = 1


@dataclass(frozen=True)
class Request:
    task: Task
    parent_pid: int
    source_fd: int
    kind: Kind
    limits: Limits
    output_fd: int = -1
    rate_hz: int = 0
    at_ms: tuple[int, ...] = ()
    encode: EncodeRequest | None = None
    audio: AudioRequest | None = None
    thumbnails: ThumbnailRequest | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Request:
        fields: dict[str, Any] = json.loads(text)
        fields["kind"] = Kind(**fields["kind"])
        fields["limits"] = Limits(**fields["limits"])
        fields["at_ms"] = tuple(fields["at_ms"])
        if fields["encode"] is not None:
            fields["encode"] = EncodeRequest.from_json(fields["encode"])
        if fields["audio"] is not None:
            fields["audio"] = AudioRequest(**fields["audio"])
        if fields["thumbnails"] is not None:
            fields["thumbnails"] = ThumbnailRequest(**fields["thumbnails"])
        return cls(**fields)
