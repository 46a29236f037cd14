"""Videos whose every frame says which one it is, and what a player sees of them afterwards.

A frame carries its number as ten black or white blocks, which survive scaling and encoding. So
a test can tell whether a frame was lost, doubled, or came at another time.
"""

from __future__ import annotations

import os
import subprocess
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from intermission.media.audio_encoding import AudioSegmentWriter
from intermission.media.container import examine, open_container
from intermission.media.encode_client import Check, split
from intermission.media.extraction import Extraction
from intermission.media.fmp4 import Segment, read_segment
from intermission.media.frame_index import index_frames
from intermission.media.info import Limits
from intermission.media.request import AudioRequest
from intermission.media.seek import frames_of
from intermission.media.sniff import Kind, sniff
from intermission.media.video_encoding import encode, start_encoders
from intermission.media.video_info import EncoderSettings, RenditionSize, Section, VideoTrack

SIZE = 96, 64
COLUMNS, ROWS = 5, 2
_DARK, _LIGHT = 50, 200
QUICK = EncoderSettings(preset="ultrafast")


def luma_of(number: int, size: tuple[int, int] = SIZE) -> np.ndarray[Any, Any]:
    """The brightness of a numbered frame."""
    width, height = size
    x = np.arange(width) * COLUMNS // width
    y = np.arange(height) * ROWS // height
    bit = y[:, None] * COLUMNS + x[None, :]
    return np.where((number >> bit) & 1, _LIGHT, _DARK).astype(np.uint8)


def number_of(luma: np.ndarray[Any, Any]) -> int:
    """Which frame it is."""
    height, width = luma.shape
    number = 0
    for bit in range(COLUMNS * ROWS):
        y, x = divmod(bit, COLUMNS)
        block = luma[
            height * (4 * y + 1) // (4 * ROWS) : height * (4 * y + 3) // (4 * ROWS),
            width * (4 * x + 1) // (4 * COLUMNS) : width * (4 * x + 3) // (4 * COLUMNS),
        ]
        number |= int(block.mean() > (_DARK + _LIGHT) / 2) << bit
    return number


def frame_of(luma: np.ndarray[Any, Any], pix_fmt: str = "yuv420p") -> VideoFrame:
    height, width = luma.shape
    if "10" in pix_fmt:
        wide = luma.astype("<u2") * 4
        grey = np.full((height // 2, width), 512, "<u2")
        return VideoFrame.from_ndarray(np.vstack([wide, grey]), format="yuv420p10le")
    frame = VideoFrame.from_ndarray(luma, format="gray")
    return frame if pix_fmt == "gray" else frame.reformat(format=pix_fmt)


def video(
    path: Path,
    *,
    codec: str = "libx264",
    times: Iterable[Fraction] = (),
    tick: Fraction | None = None,
    count: int = 75,
    fps: int = 25,
    size: tuple[int, int] = SIZE,
    pix_fmt: str = "yuv420p",
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
    draw: Callable[[int, tuple[int, int]], np.ndarray[Any, Any]] = luma_of,
    finish: Callable[[VideoFrame], None] = lambda _: None,
    setup: Callable[[VideoStream], None] = lambda _: None,
) -> Path:
    """A video of numbered frames; at these times, or evenly."""
    at_times = list(times) or [Fraction(n, fps) for n in range(count)]
    tick = tick or (Fraction(1, 90_000) if times else Fraction(1, fps))
    with av.open(str(path), "w", options=container or {}) as out:
        stream = out.add_stream(codec, rate=fps, options={"g": "12", **(options or {})})
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        stream.codec_context.time_base = tick
        setup(stream)
        for number, at in enumerate(at_times):
            frame = frame_of(draw(number, size), pix_fmt)
            frame.pts, frame.time_base = round(at / tick), tick
            finish(frame)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def ffmpeg(*args: object) -> None:
    """The program itself, for what only it can make."""
    import imageio_ffmpeg

    program = imageio_ffmpeg.get_ffmpeg_exe()
    command = [program, "-nostdin", "-loglevel", "error", "-y", *map(str, args)]
    subprocess.run(command, check=True, timeout=180)


@dataclass
class Played:
    """One rendition as it came out: what was written, and what a player sees."""

    scale: int
    init: list[bytes] = field(default_factory=list[bytes])
    data: list[bytes] = field(default_factory=list[bytes])
    segments: list[Segment] = field(default_factory=list[Segment])

    @property
    def file(self) -> bytes:
        return self.init[0] + b"".join(self.data)

    def frames(self) -> list[VideoFrame]:
        with av.open(BytesIO(self.file), "r") as container:
            return list(container.decode(video=0))

    def luma(self) -> list[np.ndarray[Any, Any]]:
        """The brightness of every frame."""
        return [luma(frame) for frame in self.frames()]

    def numbers(self) -> list[int]:
        return [number_of(one) for one in self.luma()]

    def times(self) -> list[int]:
        """As a player reads them, in ticks."""
        return [
            round(frame.pts * frame.time_base * self.scale)
            for frame in self.frames()
            if frame.pts is not None and frame.time_base is not None
        ]


def luma(frame: VideoFrame) -> np.ndarray[Any, Any]:
    return frame.reformat(format="gray").to_ndarray()


@dataclass
class Transcoded:
    video: VideoTrack
    shown: array[int]
    keys: array[int]
    sections: list[Section]
    renditions: list[Played]


def _nothing(_: float) -> None:
    """Progress that nobody looks at."""


def transcoded(
    path: Path,
    *,
    renditions: Sequence[RenditionSize] = (RenditionSize(*SIZE, 2000),),
    settings: EncoderSettings = QUICK,
    segment_s: int = 1,
    section_s: int = 1,
) -> Transcoded:
    """What the child does, done here, with everything checked that is checked otherwise."""
    scheduling = os.sched_getscheduler(0), os.sched_getparam(0)
    fd = os.open(path, os.O_RDONLY)
    try:
        kind = sniff(lambda offset, length: os.pread(fd, length, offset))
        assert isinstance(kind, Kind)
        examined = examine(fd, kind, Limits())
        reopen = partial(open_container, fd, kind, Limits())
        found = index_frames(reopen, examined, fd)
        sections = split(
            found.video, found.shown, found.keys, segment_s=segment_s, section_s=section_s
        )
        played = [Played(found.video.scale) for _ in renditions]

        def known() -> Sequence[int]:
            return found.shown

        for section in sections:
            wanted = replace(section, renditions=tuple(renditions))
            checks = [Check(wanted) for _ in renditions]

            def emit(what: str, rendition: int, data: bytes, checks: list[Any] = checks) -> None:
                if what == "init":
                    played[rendition].init.append(data)
                    return
                played[rendition].data.append(data)
                played[rendition].segments.append(checks[rendition].take(read_segment(data)))

            counted = () if found.video.has_stamps else found.shown
            with frames_of(reopen, found.video, wanted, counted) as coming:
                tracks = start_encoders(found.video, wanted, settings)
                encode(coming, tracks, found.video, wanted, settings, emit, _nothing, known)
            for check in checks:
                check.finish(path.name)
    finally:
        os.close(fd)
        # SVT-AV1 makes a process of root a realtime one; only the child's sandbox forbids that.
        os.sched_setscheduler(0, *scheduling)
    return Transcoded(found.video, found.shown, found.keys, sections, played)


def clicks(
    seconds: float, at_s: Sequence[float], rate_hz: int, channels: int = 1
) -> np.ndarray[Any, Any]:
    """Silence with short, loud clicks, the same on every channel; samples in rows."""
    samples = np.zeros((channels, int(seconds * rate_hz)), np.int16)
    for at in at_s:
        start = round(at * rate_hz)
        samples[:, start : start + rate_hz // 1000] = 20_000
    return samples


def add_audio(
    out: Any,
    samples: np.ndarray[Any, Any],
    rate_hz: int,
    *,
    codec: str,
    layout: str,
    late_s: float = 0,
) -> Callable[[], None]:
    """A track of audio in a file that is being made; call the result to write it."""
    track = out.add_stream(codec, rate=rate_hz)
    track.layout = layout

    def write() -> None:
        for start in range(0, samples.shape[1], 1024):
            piece = samples[:, start : start + 1024].T.reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(piece), format="s16", layout=layout
            )
            frame.sample_rate, frame.time_base = rate_hz, Fraction(1, rate_hz)
            frame.pts = start + round(late_s * rate_hz)
            out.mux(track.encode(frame))
        out.mux(track.encode(None))

    return write


@dataclass
class Heard:
    """A track of audio as it came out."""

    init: bytes = b""
    data: list[bytes] = field(default_factory=list[bytes])
    segments: list[Segment] = field(default_factory=list[Segment])

    def samples(self) -> np.ndarray[Any, Any]:
        """As a player decodes them: channels in rows, from the first moment on."""
        with av.open(BytesIO(self.init + b"".join(self.data)), "r") as container:
            frames = list(container.decode(audio=0))
            assert frames[0].pts == 0
            return np.concatenate([frame.to_ndarray() for frame in frames], axis=1)


def heard(path: Path, *, stream: int = 0, layout: str = "stereo", segment_s: int = 1) -> Heard:
    """The audio of a file, done here as the child does it."""
    result = Heard()

    def emit(what: str, _: int, data: bytes) -> None:
        if what == "init":
            result.init = data
        else:
            result.data.append(data)
            result.segments.append(read_segment(data))

    fd = os.open(path, os.O_RDONLY)
    try:
        kind = sniff(lambda offset, length: os.pread(fd, length, offset))
        assert isinstance(kind, Kind)
        examined = examine(fd, kind, Limits())
        wanted = AudioRequest(stream, 48_000, layout, 128, segment_s)
        with open_container(fd, kind, Limits()) as container:
            Extraction(
                container, examined, AudioSegmentWriter(wanted, emit), 48_000, Limits(),
                layout=layout, stream=stream,
            ).run(fd, lambda _: None)  # fmt: skip
    finally:
        os.close(fd)
    return result


def loud_from_s(samples: np.ndarray[Any, Any], rate_hz: int = 48_000) -> list[float]:
    """When each click begins."""
    loud = np.flatnonzero(np.abs(samples).max(axis=0) > 0.25)
    starts = loud[np.diff(loud, prepend=-rate_hz) > rate_hz // 20]
    return [float(start) / rate_hz for start in starts]


def similarity(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Structural similarity over blocks of eight by eight."""
    height, width = (length // 8 * 8 for length in one.shape)
    blocks = [
        frame[:height, :width].astype(float).reshape(height // 8, 8, width // 8, 8)
        for frame in (one, other)
    ]
    means = [block.mean(axis=(1, 3)) for block in blocks]
    spreads = [block.var(axis=(1, 3)) for block in blocks]
    both = (blocks[0] * blocks[1]).mean(axis=(1, 3)) - means[0] * means[1]
    above = (2 * means[0] * means[1] + 6.5) * (2 * both + 58.5)
    below = (means[0] ** 2 + means[1] ** 2 + 6.5) * (spreads[0] + spreads[1] + 58.5)
    return float((above / below).mean())
