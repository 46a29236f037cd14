"""What the steps of `transcode` hand to each other."""

from __future__ import annotations

from pydantic import BaseModel

from intermission import Chunk, File, Files
from intermission.media.film import Film
from intermission.media.info import AudioStream
from intermission.pipelines.transcode.playlists import Part

SOUND_HZ = 48_000


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
    files: Files = {}
    """The segments, for those who need their bytes."""


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
    files: Files = {}


class Package(BaseModel):
    """What can be played, and what cannot."""

    front: dict[str, str]
    """Texts by name that lead players to it, wherever its folder is."""
    complete: list[str]
    incomplete: list[str]
