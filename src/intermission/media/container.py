"""Opening a file with libav, and every check that comes before decoding.

Runs in the child only. The file is an inherited descriptor, the demuxer is the one its first
bytes call for, and libav may open nothing else by any protocol.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

import av
import av.error
from av.container import InputContainer
from av.stream import Disposition, Stream

from intermission.media import decoders, isobmff, mpegaudio, riff
from intermission.media.info import AudioStream, Limits, MediaInfo, VideoStream
from intermission.media.refusal import AGAIN, EXPORT, RAISE_LIMIT, Refused
from intermission.media.sniff import Kind, Timing
from intermission.media.timeline import TICKS_PER_S

_PLAUSIBILITY_FROM_S = 600
_CODECS = ",".join(sorted(decoders.ALLOWED))
_NO_CODEC = "none"
_FIRST_PACKETS = 64
"""How many packets are tried until the first frame."""


@dataclass(frozen=True)
class Examined:
    """A file that passed every check, and what decoding it must know."""

    info: MediaInfo
    origin_s: Fraction
    """The time stamp that is media time zero."""
    timing: Timing
    is_cut: bool
    """The last box lies partly beyond the end of the file."""
    told_s: Fraction | None = None
    """What a file whose packets are counted tells of its length."""


def examine(fd: int, kind: Kind, limits: Limits) -> Examined:
    """Check the file, and refuse what is broken or beyond the limits."""
    size = os.fstat(fd).st_size
    timing, is_cut, told_s = kind.timing, False, None

    def read_at(offset: int, length: int) -> bytes:
        return os.pread(fd, length, offset)

    if kind.demuxer == "mov":
        boxes = isobmff.examine(read_at, size)
        _refuse_boxes(boxes)
        timing = "counted" if boxes.has_fragments else timing
        is_cut = boxes.missing_bytes > 0
    elif kind.demuxer in ("wav", "avi"):
        _refuse_cut_riff(read_at(0, 8), size)
        if kind.demuxer == "wav":
            _refuse_uncounted_audio(riff.uncounted_audio(read_at, size), size)
    elif kind.demuxer == "mp3":
        told_s = mpegaudio.claimed_s(read_at)
    with open_container(fd, kind, limits) as container:
        _refuse_streams(container, limits)
        known = [one for one in container.streams.video if one.codec_context is not None]
        is_size_known = all(stream.width for stream in known)
    if not is_size_known:  # frames beyond the limit were refused: the header tells their size
        with open_container(fd, kind, limits, codecs=_NO_CODEC) as container:
            _refuse_sizes(container, limits)
    with open_container(fd, kind, limits) as container:
        origin_s = Fraction(container.start_time or 0, av.time_base)
        duration_s = _duration_s(container)
        if duration_s is not None and timing != "counted":
            _refuse_duration(duration_s, size, limits)
        rotations = _rotations(container)
        if duration_s is None or timing == "counted":
            timing = "counted"
            duration_s = _counted_s(container)
            _refuse_duration(duration_s, size, limits)
        info = MediaInfo(
            duration_ms=round(duration_s * 1000),
            start_ms=round(origin_s * 1000),
            container=container.format.name,
            size_bytes=size,
            video=tuple(_video(container, rotations)),
            audio=tuple(_audio(container)),
        )
    return Examined(info, origin_s, timing, is_cut, told_s)


def open_container(fd: int, kind: Kind, limits: Limits, *, codecs: str = _CODECS) -> InputContainer:
    """libav's view of the file. One at a time: all of them share the descriptor's position."""
    os.lseek(fd, 0, os.SEEK_SET)
    max_pixels = {"max_pixels": str(limits.side_pixels**2)}
    try:
        container = av.open(
            "fd:",
            "r",
            format=kind.demuxer,
            options={**max_pixels, "threads": "1"},
            container_options={
                "fd": str(fd),
                "protocol_whitelist": "fd",
                "format_whitelist": av.ContainerFormat(kind.demuxer, "r").name,
                "codec_whitelist": codecs,
            },
            metadata_errors="replace",
        )
    except av.error.FFmpegError as e:
        raise_unless_damage(e, fd)
        raise Refused(
            f"begins like {kind.title}, but its header is damaged ({e.strerror}).", AGAIN
        ) from e
    for stream in container.streams.video:
        if stream.codec_context is not None:  # the options above are for the first look alone
            stream.codec_context.options = max_pixels
    return container


def raise_unless_damage(e: av.error.FFmpegError, fd: int) -> None:
    """An error of the machine is not the file's fault; everything else libav says is."""
    if isinstance(e, MemoryError):
        raise e
    if e.errno == errno.EIO:  # libav also says it of short files, the disk says it of itself
        offset = 0
        while piece := os.pread(fd, 1 << 20, offset):
            offset += len(piece)


def _refuse_boxes(boxes: isobmff.Structure) -> None:
    if boxes.is_protected:
        raise Refused(
            "is encrypted (DRM).", "Use a copy without protection; the key is not in the file."
        )
    if boxes.has_index:
        return
    if boxes.has_fragments:
        raise Refused(
            "is one fragment of a stream, without the header that comes before the first.",
            "Join it with its initialization segment.",
        )
    raise Refused(
        "has no index (no moov box): the recording or the copy stopped before its end.",
        f"{AGAIN} If that is all there is, a repair tool may rebuild the index.",
    )


def _refuse_cut_riff(head: bytes, size: int) -> None:
    """libav takes the end of a WAV file for the end of its audio; the header says otherwise."""
    announced = int.from_bytes(head[4:8], "little") + 8
    missing = announced - size
    is_known = head[:4] == b"RIFF" and announced < riff.UNKNOWN_BYTES
    if is_known and missing > max(riff.SLACK_BYTES, announced // 20):
        raise Refused(f"ends after {size} of {announced} bytes.", AGAIN)


def _refuse_uncounted_audio(counted: int | None, size: int) -> None:
    """libav would read what the header counts, and leave out the rest without a word."""
    if counted is not None:
        raise Refused(
            f"has audio after the {counted} bytes that its header counts, of {size} in all.",
            f"{AGAIN} If that is all there is, repair its header.",
        )


def _refuse_streams(container: InputContainer, limits: Limits) -> None:
    streams = container.streams
    if len(streams) > limits.streams:
        raise Refused(
            f"has {len(streams)} streams, more than the limit of {limits.streams}.", RAISE_LIMIT
        )
    if not streams.video and not streams.audio:
        raise Refused("holds neither audio nor video.", EXPORT)
    for stream in streams:
        if "enc_key_id" in stream.metadata:
            raise Refused("is encrypted (DRM).", "Use a copy without protection.")
    _refuse_sizes(container, limits)


def _refuse_sizes(container: InputContainer, limits: Limits) -> None:
    side = limits.side_pixels
    for stream in container.streams.video:
        if stream.codec_context is not None and max(stream.width, stream.height) > side:
            raise Refused(
                f"has frames of {stream.width} by {stream.height}, more than the limit of "
                f"{side} by {side}.",
                "Scale it down first.",
            )


def _refuse_duration(duration_s: Fraction, size: int, limits: Limits) -> None:
    claim = f"claims {_hours(duration_s)}"
    if duration_s > limits.duration_s:
        raise Refused(f"{claim}, more than the limit of {_hours(limits.duration_s)}.", RAISE_LIMIT)
    if duration_s > _PLAUSIBILITY_FROM_S and size < duration_s * limits.bytes_per_s_min:
        raise Refused(f"{claim} but holds only {size} bytes.", AGAIN)


def _hours(seconds: Fraction | int) -> str:
    if seconds < 3600:
        return f"{float(seconds):.0f} s"
    return f"{float(seconds) / 3600:.1f}".removesuffix(".0") + " h"


def _duration_s(container: InputContainer) -> Fraction | None:
    """The longest that anything in the file claims; None when nothing does."""
    claims = [Fraction(container.duration or 0, av.time_base)]
    for stream in (*container.streams.video, *container.streams.audio):
        if stream.duration and stream.time_base:
            claims.append(stream.duration * stream.time_base)
    return max(claims) if max(claims) > 0 else None


def packets(container: InputContainer, streams: Sequence[Stream] = ()) -> Iterator[av.Packet]:
    """The packets of these streams, or of all, and at the end an empty one for each."""
    try:
        yield from container.demux(*streams)
    except IndexError:
        # Streams that first appear within the file confuse PyAV at its end, where it empties
        # the decoders in the order of their streams: those that were there first are done.
        return


def _counted_s(container: InputContainer) -> Fraction:
    """Read every packet to find the last moment; a file that breaks off ends there."""
    clock, reach = Clock(container), 0
    try:
        for packet in packets(container):
            reach = max(reach, clock.end(packet))
    except av.error.FFmpegError as e:
        if isinstance(e, MemoryError):
            raise
    return Fraction(reach, TICKS_PER_S)


class Clock:
    """Turns the stamps of each stream into ticks since the start of the file."""

    def __init__(self, container: InputContainer) -> None:
        # Worked out once: PyAV makes a new fraction each time a packet is asked for its own.
        self._ratios = [
            ((stream.time_base or Fraction(0)) * TICKS_PER_S).as_integer_ratio()
            for stream in container.streams
        ]
        self._origin = (container.start_time or 0) * TICKS_PER_S // av.time_base

    def at(self, stream_index: int, stamp: int) -> int:
        numerator, denominator = self._ratios[stream_index]
        return stamp * numerator // denominator - self._origin

    def end(self, packet: av.Packet) -> int:
        """When a packet ends; zero for one that does not say."""
        if packet.pts is None:
            return 0
        return self.at(packet.stream_index, packet.pts + (packet.duration or 0))


def _audio(container: InputContainer) -> Iterator[AudioStream]:
    for stream in container.streams.audio:
        if stream.codec_context is not None:
            yield AudioStream(
                index=stream.index,
                codec=decoders.name_of(stream),
                rate_hz=stream.rate or 0,
                channels=stream.channels,
                language=stream.language,
            )


def _video(container: InputContainer, rotations: dict[int, int]) -> Iterator[VideoStream]:
    for stream in container.streams.video:
        if stream.codec_context is not None:
            yield VideoStream(
                index=stream.index,
                codec=decoders.name_of(stream),
                width=stream.width,
                height=stream.height,
                fps=_fps(stream.average_rate or stream.guessed_rate),
                rotation_deg=rotations.get(stream.index, 0),
                frames=stream.frames or None,
                language=stream.language,
                attached_picture=bool(stream.disposition & Disposition.attached_pic),
            )


def _fps(rate: Fraction | None) -> str:
    return f"{rate.numerator}/{rate.denominator}" if rate else "0/1"


def _rotations(container: InputContainer) -> dict[int, int]:
    """Only a decoded frame tells how it is to be turned, so decode the first of each stream."""
    found: dict[int, int] = {}
    wanted = [stream for stream in container.streams.video if decoders.is_allowed(stream)]
    if not wanted:  # to libav, no streams means all of them
        return found
    for stream in wanted:
        stream.codec_context.thread_count = 1
    try:
        for packet in islice(packets(container, wanted), _FIRST_PACKETS):
            for frame in packet.decode():
                found.setdefault(packet.stream_index, getattr(frame, "rotation", 0))
            if len(found) == len(wanted):
                break
    except (av.error.FFmpegError, ValueError) as e:
        if isinstance(e, MemoryError):
            raise
    return found
