"""The chunks of `transcode`, and what its steps hand to each other."""

from __future__ import annotations

from pydantic import BaseModel

from intermission import Chunk, File, Files
from intermission.media.info import AudioStream
from intermission.media.video_info import VideoTrack
from intermission.pipelines.transcode.playlists import SegmentFile

AUDIO_HZ = 48_000


class Probed(BaseModel):
    """What the source holds, and when each of its frames is shown."""

    video: VideoTrack | None
    audio: list[AudioStream]
    duration_ms: int
    stamps: File
    keys: int


class EncodeChunk(Chunk):
    """A number of segments of the video, in one rendition."""

    first: int
    """The number of its first segment."""
    segments: int
    rendition: str
    width: int
    height: int
    kbps: int


class Encoded(BaseModel):
    """An encoded chunk."""

    rendition: str
    codecs: str
    init_sha256: str
    segments: list[SegmentFile]
    files: Files = {}
    """The segments' bytes, for the steps that need them."""


class AudioTrack(Chunk):
    """An audio track, as it is to be encoded."""

    stream: int
    channels: int
    language: str
    number: int


class EncodedAudio(BaseModel):
    """An encoded audio track."""

    track: AudioTrack
    codecs: str
    segments: list[SegmentFile]
    files: Files = {}


class Package(BaseModel):
    """What can be played, and what can't."""

    entrypoints: dict[str, str]
    """Texts by name that lead players to it, wherever its folder is."""
    complete: list[str]
    incomplete: list[str]
