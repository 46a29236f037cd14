"""Where every picture of a film is in time, from its packets alone. Runs in the child only."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, pairwise

import av
import av.error
from av.container import InputContainer
from av.stream import Discard
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from intermission.media.film import Film
from intermission.media.opening import Examined, packets, raise_unless_damage
from intermission.media.pictures import Reopen, playable
from intermission.media.refusal import AGAIN, Refused

_FIRST_PACKETS = 64
SCALE_MIN = 10_000
"""Ticks a second, at least: between two pictures there must be room for others to be decoded."""
_INTERLACED = {2: "tff", 3: "bff", 4: "tff", 5: "bff"}


@dataclass(frozen=True)
class Survey:
    """A film, when each of its pictures is shown, and which of them are key frames."""

    film: Film
    shown: array[int]
    """In ticks since the first moment, ascending."""
    keys: array[int]
    """A part of these."""


def survey(reopen: Reopen, examined: Examined, fd: int) -> Survey:
    """Read every packet of the film. Raises `Refused` when there is none."""
    with reopen() as container:
        stream = playable(container)
        first = _first_picture(container, stream)
    with reopen() as container:
        stream = playable(container)
        for other in container.streams:
            if other is not stream:
                other.discard = Discard.all
        try:
            return _survey(container, stream, first, examined)
        except av.error.FFmpegError as e:
            raise_unless_damage(e, fd)
            raise Refused(f"cannot be read to its end ({e.strerror}).", AGAIN) from e


def _survey(
    container: InputContainer, stream: VideoStream, first: VideoFrame, examined: Examined
) -> Survey:
    base = stream.time_base or Fraction(1, 90_000)
    finer = -(-SCALE_MIN // base.denominator)
    scale, ticks = base.denominator * finer, base.numerator * finer
    origin = round(examined.origin_s * scale)
    shown, keys, durations, count = array("q"), array("q"), 0, 0
    for packet in packets(container, [stream]):
        if not packet.size or packet.is_discard:
            continue
        count += 1
        if packet.pts is not None:
            at = packet.pts * ticks - origin
            shown.append(at)
            if packet.is_keyframe:
                keys.append(at)
            durations = (packet.duration or 0) * ticks
    if not count:
        raise Refused("has no pictures.", AGAIN)
    shown, keys = array("q", sorted(shown)), array("q", sorted(keys))
    has_stamps = len(shown) == count and all(one < other for one, other in pairwise(shown))
    if not has_stamps:
        shown, scale = _counted(stream, count)
        keys, origin, durations = shown[:1], 0, 0
    usual = shown[-1] - shown[-2] if count > 1 else scale // 25
    film = _film(stream, first, scale, origin, count, shown[-1] + (durations or usual), has_stamps)
    return Survey(film, shown, keys)


def _counted(stream: VideoStream, count: int) -> tuple[array[int], int]:
    """Pictures that do not say when they are shown follow each other evenly."""
    rate = stream.average_rate or stream.guessed_rate or Fraction(25)
    finer = -(-SCALE_MIN // rate.numerator)
    return array("q", (n * rate.denominator * finer for n in range(count))), rate.numerator * finer


def _first_picture(container: InputContainer, stream: VideoStream) -> VideoFrame:
    """Only a decoded picture says how it is stored."""
    for packet in islice(packets(container, [stream]), _FIRST_PACKETS):
        try:
            decoded = packet.decode()
        except av.error.InvalidDataError:
            continue
        for frame in decoded:
            if isinstance(frame, VideoFrame):
                return frame
    raise Refused("has no picture at its beginning that can be decoded.", AGAIN)


def _film(
    stream: VideoStream,
    first: VideoFrame,
    scale: int,
    origin: int,
    frames: int,
    end: int,
    has_stamps: bool,
) -> Film:
    aspect = stream.sample_aspect_ratio or Fraction(1)
    width, height = first.width, first.height
    if aspect > 1:
        width = round(width * aspect)
    elif 0 < aspect < 1:
        height = round(height / aspect)
    if first.rotation % 180:
        width, height = height, width
    return Film(
        codec=stream.codec_context.codec.canonical_name,
        width=width,
        height=height,
        scale=scale,
        origin=origin,
        frames=frames,
        end=end,
        has_stamps=has_stamps,
        rotation_deg=first.rotation % 360,
        interlaced=_INTERLACED.get(int(stream.codec_context.field_order), "tff")
        if first.interlaced_frame
        else "",
        bits=first.format.components[0].bits,
        primaries=int(first.color_primaries),
        transfer=int(first.color_trc),
        matrix=int(first.colorspace),
        full_range=int(first.color_range) == 2,
    )
