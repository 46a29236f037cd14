"""What the steps of `transcode` hand to each other."""

from __future__ import annotations

from pydantic import BaseModel

from intermission import Chunk, File
from intermission.media.film import Film
from intermission.media.info import AudioStream
from intermission.pipelines.transcode.playlists import Part


class Probed(BaseModel):
    """What the source is, and when each of its pictures is shown."""

    film: Film | None
    audio: list[AudioStream]
    duration_ms: int
    stamps: File
    keys: int


class Piece(Chunk):
    """A passage of the film in one quality."""

    first: int
    """The number of its first segment."""
    segments: int
    quality: str
    width: int
    height: int
    kbps: int


class Encoded(BaseModel):
    """A passage in one quality."""

    quality: str
    codecs: str
    init_sha256: str
    parts: list[Part]


class Track(Chunk):
    """A track of sound."""

    stream: int
    channels: int
    language: str
    number: int


class Sound(BaseModel):
    """A track of sound, encoded."""

    track: Track
    codecs: str
    parts: list[Part]


class Package(BaseModel):
    """What can be played, and what cannot."""

    files: list[File]
    complete: list[str]
    incomplete: list[str]
