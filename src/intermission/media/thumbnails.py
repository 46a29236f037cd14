"""Frames of a video as JPEG, side by side on sheets. Runs in the child only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice

import av
from av.container import InputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame

from intermission.media.frame_reader import decode, playable
from intermission.media.request import ThumbnailRequest

_FORMAT = "yuvj420p"
_OPTIONS = {"qmin": "4", "qmax": "4", "flags": "+bitexact"}


def sheets(container: InputContainer, wanted: ThumbnailRequest) -> Iterator[bytes]:
    """Every frame in turn, from left to right and top to bottom, a sheet at a time."""
    small = (
        frame.reformat(wanted.width, wanted.height, _FORMAT, threads=1)
        for frame in decode(container, playable(container))
    )
    while row := list(islice(small, wanted.columns * wanted.rows)):
        yield _jpeg(_side_by_side(row, wanted))


def _side_by_side(frames: Sequence[VideoFrame], wanted: ThumbnailRequest) -> VideoFrame:
    rows = -(-len(frames) // wanted.columns)
    columns = min(len(frames), wanted.columns)
    sheet = VideoFrame(columns * wanted.width, rows * wanted.height, _FORMAT)
    for number, plane in enumerate(sheet.planes):
        half = 2 if number else 1
        width, height = wanted.width // half, wanted.height // half
        # What no frame covers is black.
        data = bytearray([128 if number else 0]) * plane.buffer_size
        for n, frame in enumerate(frames):
            source = frame.planes[number]
            pixels = memoryview(source)
            left, top = n % wanted.columns * width, n // wanted.columns * height
            for y in range(height):
                at = (top + y) * plane.line_size + left
                data[at : at + width] = pixels[y * source.line_size : y * source.line_size + width]
        plane.update(bytes(data))
    return sheet


def _jpeg(frame: VideoFrame) -> bytes:
    context = av.CodecContext.create("mjpeg", "w")
    assert isinstance(context, VideoCodecContext)
    context.width, context.height, context.pix_fmt = frame.width, frame.height, _FORMAT
    context.time_base = Fraction(1, 25)
    context.options = _OPTIONS
    frame.pts = 0
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])
