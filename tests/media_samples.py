"""Small media files, made with PyAV when a test needs them; nothing binary is kept.

The frame is grey and its brightness is its number; the audio is a 440 Hz tone. So a test can
tell from what comes out which moment of what went in it is.
"""

from __future__ import annotations

import math
import re
import struct
from array import array
from fractions import Fraction
from pathlib import Path

import av
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.video.stream import VideoStream

WIDTH, HEIGHT, FPS = 64, 48, 25
TONE_HZ = 440


def make(
    path: Path,
    *,
    video: str | None = "libx264",
    audio: str | None = "aac",
    seconds: float = 2,
    rate_hz: int = 44_100,
    audio_from_s: float = 0,
    silent_from_s: float = math.inf,
    gap: tuple[float, float] | None = None,
    rotation_deg: int = 0,
    language: str | None = None,
    options: dict[str, str] | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> Path:
    """A file whose kind is its name's extension. `gap` leaves out the audio from..to."""
    with av.open(str(path), "w", options=options or {}) as container:
        stream = _video_stream(container, video, size, rotation_deg) if video else None
        track = _track(container, audio, rate_hz, language) if audio else None
        if stream is not None:
            for number in range(int(seconds * FPS)):
                container.mux(stream.encode(video_frame(number, stream.pix_fmt or "", size)))
            container.mux(stream.encode())
        if track is not None:
            first = int(audio_from_s * rate_hz)
            for start in range(0, int((seconds - audio_from_s) * rate_hz), 1024):
                at_s = (first + start) / rate_hz
                if gap is None or not gap[0] <= at_s < gap[1]:
                    samples = tone(start, 1024, rate_hz, at_s >= silent_from_s)
                    container.mux(track.encode(audio_frame(samples, first + start, rate_hz)))
            container.mux(track.encode())
    return path


def _video_stream(
    container: OutputContainer, codec: str, size: tuple[int, int], rotation_deg: int
) -> VideoStream:
    video = container.add_stream(codec, rate=FPS, options={"g": "25"})
    assert isinstance(video, VideoStream)
    video.width, video.height = size
    video.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    if rotation_deg:
        video.set_display_rotation(rotation_deg)
    return video


def _track(
    container: OutputContainer, codec: str, rate_hz: int, language: str | None
) -> AudioStream:
    track = container.add_stream(codec, rate=rate_hz)
    assert isinstance(track, AudioStream)
    track.layout = "mono"
    if language:
        track.metadata["language"] = language
    return track


def video_frame(number: int, pix_fmt: str, size: tuple[int, int]) -> av.VideoFrame:
    frame = av.VideoFrame(*size, pix_fmt)
    for plane, level in zip(frame.planes, (number * 4 % 256, 128, 128), strict=True):
        plane.update(bytes([level]) * plane.buffer_size)
    frame.pts = number
    return frame


def audio_frame(samples: array[int], pts: int, rate_hz: int) -> av.AudioFrame:
    frame = av.AudioFrame(format="s16", layout="mono", samples=len(samples))
    frame.planes[0].update(samples.tobytes().ljust(frame.planes[0].buffer_size, b"\0"))
    frame.sample_rate, frame.pts, frame.time_base = rate_hz, pts, Fraction(1, rate_hz)
    return frame


def tone(start: int, count: int, rate_hz: int, is_silent: bool) -> array[int]:
    if is_silent:
        return array("h", bytes(2 * count))
    step = 2 * math.pi * TONE_HZ / rate_hz
    return array("h", (int(8000 * math.sin(step * n)) for n in range(start, start + count)))


def loudness(wav: Path, from_s: float, to_s: float, rate_hz: int = 16_000) -> float:
    """Mean of the absolute samples between two moments of a WAV file as we write them."""
    data = wav.read_bytes()[44:]
    samples = array("h", data[int(from_s * rate_hz) * 2 : int(to_s * rate_hz) * 2])
    return sum(map(abs, samples)) / len(samples)


def patched(data: bytes, *changes: tuple[bytes, int, bytes]) -> bytes:
    """Each change writes bytes at an offset from every place where a box's name stands."""
    changed = bytearray(data)
    for box, offset, value in changes:
        for at in _places(data, box):
            changed[at + offset : at + offset + len(value)] = value
    return bytes(changed)


def encrypted(data: bytes) -> bytes:
    """An MP4 file whose tracks say that they are encrypted."""
    return patched(data, (b"stsd", 16, b"encv"))


def claiming(data: bytes, seconds: int) -> bytes:
    """An MP4 file whose samples are spread over another duration, or a Matroska file whose
    header claims one."""
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        return patched(data, (b"\x44\x89\x88", 3, struct.pack(">d", seconds * 1000)))
    changed = bytearray(patched(data, (b"edts", 0, b"free")))
    scale = 1
    for at in _places(data, b"mdhd", b"stts"):
        if data[at : at + 4] == b"mdhd":
            scale = int.from_bytes(data[at + 16 : at + 20], "big")
            changed[at + 20 : at + 24] = min(scale * seconds, 2**32 - 2).to_bytes(4, "big")
        else:
            samples = int.from_bytes(data[at + 12 : at + 16], "big")
            changed[at + 16 : at + 20] = (scale * seconds // samples).to_bytes(4, "big")
    return bytes(changed)


def _places(data: bytes, *names: bytes) -> list[int]:
    return [match.start() for match in re.finditer(b"|".join(names), data)]
