"""Single frames of a video. Runs in the child only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import av
import av.error
from av.container import InputContainer
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from intermission.media import decoders
from intermission.media.container import Examined, packets, raise_unless_damage
from intermission.media.refusal import AGAIN, EXPORT, Refused

Reopen = Callable[[], InputContainer]

_SEEK_BEYOND_S = 5
"""A frame closer than this is reached by decoding on; a seek would go back to a key frame."""


def frames(
    reopen: Reopen, examined: Examined, at_ms: tuple[int, ...], fd: int
) -> Iterator[tuple[int, int, int, bytes]]:
    """For each time the frame on screen then: its own time, width, height and RGB24 rows."""
    with _Reel(reopen, examined) as reel:
        for ms in at_ms:
            try:
                frame = reel.at(Fraction(ms, 1000))
            except av.error.FFmpegError as e:
                raise_unless_damage(e, fd)
                frame = None
            if frame is None:
                raise Refused(f"has no frame at {ms} ms that can be decoded.", AGAIN)
            yield round(reel.time_s(frame) * 1000), frame.width, frame.height, _rgb(frame)


def playable(container: InputContainer) -> VideoStream:
    """The video, ready to be decoded."""
    stream = video_stream_of(container)
    if stream is None:
        raise Refused("has no video.", EXPORT)
    if not decoders.is_allowed(stream):
        name = decoders.name_of(stream)
        raise Refused(f"has video in a format that is not supported ({name}).", EXPORT)
    stream.codec_context.thread_count = 1
    return stream


def video_stream_of(container: InputContainer) -> VideoStream | None:
    """The first video stream that is not cover art."""
    for stream in container.streams.video:
        if stream.codec_context is not None and not stream.disposition & Disposition.attached_pic:
            return stream
    return None


class _Reel:
    """Decodes forward, and seeks only where that is shorter."""

    def __init__(self, reopen: Reopen, examined: Examined) -> None:
        self._reopen = reopen
        self._origin_s = examined.origin_s
        self._container = reopen()
        self._rewound(self._container)

    def __enter__(self) -> _Reel:
        return self

    def __exit__(self, *_: object) -> None:
        self._container.close()

    def time_s(self, frame: VideoFrame) -> Fraction:
        if frame.pts is None or frame.time_base is None:
            return Fraction(0)
        return frame.pts * frame.time_base - self._origin_s

    def at(self, at_s: Fraction) -> VideoFrame | None:
        reached_s = self.time_s(self._shown) if self._shown is not None else Fraction(0)
        if reached_s <= at_s <= reached_s + _SEEK_BEYOND_S:
            return self._forward(at_s)
        if self._seek(at_s):
            frame = self._forward(at_s)
            if frame is not None and self.time_s(frame) <= at_s:
                return frame
        # Not every container can be searched, and some searches end beyond their goal.
        self._container.close()
        self._container = self._reopen()
        self._rewound(self._container)
        return self._forward(at_s)

    def _forward(self, at_s: Fraction) -> VideoFrame | None:
        while self._ahead is None or self.time_s(self._ahead) <= at_s:
            self._shown = self._ahead or self._shown
            self._ahead = next(self._decoded, None)
            if self._ahead is None:
                break
        self._shown = self._shown or self._ahead
        return self._shown

    def _rewound(self, container: InputContainer) -> None:
        self._stream = playable(container)
        self._restart()

    def _seek(self, at_s: Fraction) -> bool:
        offset = int((at_s + self._origin_s) / (self._stream.time_base or 1))
        try:
            self._container.seek(offset, stream=self._stream)
        except av.error.FFmpegError:
            return False
        self._restart()
        return True

    def _restart(self) -> None:
        self._shown: VideoFrame | None = None
        self._ahead: VideoFrame | None = None
        self._decoded = decode(self._container, self._stream)


def decode(container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    """Every frame that can be decoded, in the order they are shown."""
    for packet in packets(container, [stream]):
        try:
            decoded = packet.decode()
        except av.error.InvalidDataError:
            continue  # a damaged frame; the next may be whole
        yield from (frame for frame in decoded if isinstance(frame, VideoFrame))


def _rgb(frame: VideoFrame) -> bytes:
    plane = frame.reformat(format="rgb24", threads=1).planes[0]
    row = frame.width * 3
    if plane.line_size == row:
        return bytes(plane)[: row * frame.height]
    data = memoryview(plane)
    return b"".join(
        data[y * plane.line_size : y * plane.line_size + row] for y in range(frame.height)
    )
