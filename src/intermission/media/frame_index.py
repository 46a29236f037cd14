"""When every frame of a video is shown. Runs in the child only.

As a rule the packets tell, and nothing is decoded. Some files store a frame in two packets, two
frames in one, or impossible times: so the beginning of every video is decoded and compared, and
where it disagrees, the whole video is decoded once to know its frames.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import av
import av.error
from av.container import InputContainer
from av.stream import Discard
from av.video.frame import VideoFrame

from intermission.media.container import Clock, Examined, packets, raise_unless_damage
from intermission.media.extraction import allowance_s
from intermission.media.frame_reader import Reopen, playable
from intermission.media.refusal import AGAIN, Refused
from intermission.media.timeline import TICKS_PER_S
from intermission.media.video_info import RGB, VideoTrack

_FIRST_PACKETS = 512
_FIRST_FRAMES = 24
"""Decoded to compare them with what the packets say: the decoder holds back up to 16."""
SCALE_MIN = 10_000
"""Ticks a second, at least: between two frames there must be room for others to be decoded."""
_DOUBLE_MAX = 0.1
"""Of two frames at the same time one is left out; with more of them the times mean nothing."""


@dataclass(frozen=True)
class FrameIndex:
    """A video, when each of its frames is shown, and which of them are key frames."""

    video: VideoTrack
    shown: array[int]
    """In ticks since the first moment, ascending."""
    keys: array[int]
    """A part of these."""


def index_frames(reopen: Reopen, examined: Examined, fd: int) -> FrameIndex:
    """Read every packet of the video. Raises `Refused` when there is none."""
    try:
        with reopen() as container:
            beginning = _Beginning(container)
        with reopen() as container:
            listed = _Listed(container, examined)
        shown = beginning.confirmed(listed)
        if shown is None:
            with reopen() as container:
                return _decoded(container, listed, beginning)
        return _made(listed, beginning, shown, has_stamps=True)
    except av.error.FFmpegError as e:
        raise_unless_damage(e, fd)
        raise Refused(f"cannot be read to its end ({e.strerror}).", AGAIN) from e


class _Listed:
    """What the packets say. Times are in ticks since the first moment."""

    def __init__(self, container: InputContainer, examined: Examined) -> None:
        self.stream = stream = playable(container)
        base = stream.time_base or Fraction(1, 90_000)
        finer = -(-SCALE_MIN // base.denominator)
        self.scale, self.ticks = base.denominator * finer, base.numerator * finer
        self.origin = round(examined.origin_s * self.scale)
        self.rate = stream.average_rate or stream.guessed_rate or Fraction(25)
        self.shown, self.keys, self.decoded = array("q"), array("q"), array("q")
        self.count = self.last_length = 0
        clock, reach = Clock(container), 0
        is_own_claim = examined.info.container == "mov" and bool(stream.duration)
        if is_own_claim:  # of the others nothing is to be learned
            for other in container.streams:
                if other is not stream:
                    other.discard = Discard.all
        for packet in packets(container):
            reach = max(reach, clock.end(packet))
            if packet.stream_index == stream.index and packet.size and not packet.is_discard:
                self._take(packet)
        if not self.count:
            raise Refused("has no video.", AGAIN)
        self.counts_decoding = examined.info.container == "avi"
        if examined.timing == "claimed":
            # Some writers count the duration from zero, whatever the first stamp is.
            claimed_s = Fraction(examined.info.duration_ms, 1000) - max(examined.origin_s, 0)
            if is_own_claim:
                end_s = ((stream.start_time or 0) + (stream.duration or 0)) * base
                claimed_s = end_s - examined.origin_s
            _refuse_short(Fraction(reach, TICKS_PER_S), claimed_s, examined)

    def _take(self, packet: av.Packet) -> None:
        self.count += 1
        if packet.dts is not None:
            self.decoded.append(packet.dts * self.ticks - self.origin)
        if packet.pts is not None:
            at = packet.pts * self.ticks - self.origin
            self.shown.append(at)
            if packet.is_keyframe:
                self.keys.append(at)
            self.last_length = (packet.duration or 0) * self.ticks

    @property
    def is_in_order(self) -> bool:
        """Whether every packet has a time, and none goes back to an earlier one."""
        return len(self.shown) == self.count and all(
            one <= other for one, other in pairwise(self.decoded)
        )


class _Beginning:
    """The first frames, decoded: what they are like, and whether the packets know their times."""

    def __init__(self, container: InputContainer) -> None:
        stream = playable(container)
        self.first: VideoFrame
        self.is_interlaced = False
        self.stamps: list[int | None] = []
        for n, packet in enumerate(packets(container, [stream])):
            for frame in _frames(packet):
                if not self.stamps:
                    self.first = frame
                self.is_interlaced = self.is_interlaced or frame.interlaced_frame
                self.stamps.append(frame.pts)
            if len(self.stamps) >= _FIRST_FRAMES or (n >= _FIRST_PACKETS and self.stamps):
                break
        if not self.stamps:
            raise Refused("has no video frame that can be decoded.", AGAIN)
        self.base = stream.time_base or Fraction(1, 90_000)
        self.aspect = stream.sample_aspect_ratio or Fraction(1)
        self.codec = stream.codec_context.codec.canonical_name

    def confirmed(self, listed: _Listed) -> array[int] | None:
        """The times of all frames, if the packets are right about those that were decoded."""
        stamps = [stamp for stamp in self.stamps if stamp is not None]
        if not listed.is_in_order or len(stamps) < len(self.stamps):
            return None
        seen = [stamp * listed.ticks - listed.origin for stamp in stamps]
        # Those that lean on frames before the first, which are not in the file, cannot be seen.
        first = min([seen[0], *listed.keys[:1]])
        stored = sorted(at for at in listed.shown if at >= first)
        shown = array("q", _without_doubles(stored))
        if len(shown) < (1 - _DOUBLE_MAX) * len(stored):
            return None
        expected = shown[bisect_left(shown, seen[0]) : bisect_right(shown, seen[-1])]
        return shown if list(expected) == sorted(set(seen)) == _without_doubles(seen) else None


def _without_doubles(times: Sequence[int]) -> list[int]:
    return [at for n, at in enumerate(times) if n == 0 or at != times[n - 1]]


def _decoded(container: InputContainer, listed: _Listed, beginning: _Beginning) -> FrameIndex:
    """The same from the frames themselves."""
    stream = playable(container)
    stamps = [frame.pts for packet in packets(container, [stream]) for frame in _frames(packet)]
    known = [stamp * listed.ticks - listed.origin for stamp in stamps if stamp is not None]
    if len(known) == len(stamps) and all(one < other for one, other in pairwise(known)):
        return _made(listed, beginning, array("q", known), has_stamps=True)
    # They follow each other as their packets do, or, if that means nothing, evenly.
    shown = sorted(set(listed.decoded))
    if len(shown) != len(stamps):
        each = listed.scale / listed.rate
        shown = [round(n * each) for n in range(len(stamps))]
    start = shown[0]
    return _made(listed, beginning, array("q", (at - start for at in shown)), has_stamps=False)


def _frames(packet: av.Packet) -> list[VideoFrame]:
    try:
        return [frame for frame in packet.decode() if isinstance(frame, VideoFrame)]
    except av.error.InvalidDataError:
        return []


def _refuse_short(reach_s: Fraction, claimed_s: Fraction, examined: Examined) -> None:
    if reach_s < claimed_s - allowance_s(claimed_s, is_cut=examined.is_cut):
        raise Refused(f"ends after {float(reach_s):.1f} of {float(claimed_s):.1f} s.", AGAIN)


def _made(
    listed: _Listed, beginning: _Beginning, shown: array[int], has_stamps: bool
) -> FrameIndex:
    # An AVI file has one moment for each frame, and libav adds the delay of the decoder to it.
    # The clock of other files may be coarser than that of their video.
    delay = shown[0] - listed.decoded[0] if listed.counts_decoding and has_stamps else 0
    shift = min(shown[0], max(0, delay)) if shown[0] >= 0 else shown[0]
    origin, late = listed.origin + shift, shown[0] - shift
    shown, keys = (array("q", (at - shift for at in times)) for times in (shown, listed.keys))
    shown[0] = 0
    usual = shown[-1] - shown[-2] if len(shown) > 1 else round(listed.scale / listed.rate)
    last = listed.last_length if has_stamps and listed.last_length else usual
    first = beginning.first
    width, height = first.width, first.height
    if beginning.aspect > 1:
        width = round(width * beginning.aspect)
    elif 0 < beginning.aspect < 1:
        height = round(height / beginning.aspect)
    if first.rotation % 180:
        width, height = height, width
    video = VideoTrack(
        codec=beginning.codec,
        width=width,
        height=height,
        scale=listed.scale,
        origin=origin,
        frames=len(shown),
        end=shown[-1] + last,
        late=late,
        has_stamps=has_stamps,
        rotation_deg=first.rotation % 360,
        is_interlaced=beginning.is_interlaced,
        bits=first.format.components[0].bits,
        primaries=int(first.color_primaries),
        transfer=int(first.color_trc),
        matrix=RGB if first.format.is_rgb else int(first.colorspace),
        full_range=int(first.color_range) == 2,
    )
    usable = sorted(at for at in keys if at >= late) if has_stamps else []
    return FrameIndex(video, shown, array("q", usable))
