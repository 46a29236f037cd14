"""The frames of a section, decoded from a key frame at or before it. Runs in the child only.

A seek by time ends where the container's index leads it, which may be anywhere near. So packets are
skipped until the key frame itself comes, and its frames count only if the first frame of the
section is among them; otherwise an earlier key frame is tried, and at last the start of the video.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain

import av.error
from av.container import InputContainer
from av.stream import Discard
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from intermission.media.container import packets
from intermission.media.frame_reader import Reopen, playable
from intermission.media.refusal import AGAIN, Refused
from intermission.media.video_info import Section, VideoTrack

_EARLIER_S = (0, 1, 4, 16)
"""How far before a key frame to seek, in turn: the index of some containers is rough."""
_NEIGHBOURS = 3
"""How many frames before the first a filter needs that looks at neighbours."""

Timed = tuple[int, VideoFrame]
"""A frame and when it is shown."""


@contextmanager
def frames_of(
    reopen: Reopen, video: VideoTrack, section: Section, counted: Sequence[int]
) -> Iterator[Iterator[Timed]]:
    """The frames of a section in order, a few before it, and all that come after.

    `counted` is when each frame is shown, for a video whose times don't identify frames.
    """
    for key in (*section.keys, None):
        with reopen() as container:
            timed = _timed(_decoded(container, video, key), video, counted)
            before, first = _first(timed, video, section)
            if key is not None and (first is None or first[0] != section.cuts[0]):
                continue
            yield chain(before, () if first is None else (first,), timed)
            return


def _first(
    timed: Iterator[Timed], video: VideoTrack, section: Section
) -> tuple[Iterator[Timed], Timed | None]:
    """The last frames before the section as far as they are needed, and its first."""
    before: deque[Timed] = deque(maxlen=_NEIGHBOURS if video.is_interlaced else 0)
    for at, frame in timed:
        if at >= section.cuts[0]:
            return iter(before), (at, frame)
        before.append((at, frame))
    return iter(before), None


def _timed(
    decoded: Iterator[VideoFrame], video: VideoTrack, counted: Sequence[int]
) -> Iterator[Timed]:
    """Each frame with its time; of two that are shown at the same time, the first."""
    if not video.has_stamps:
        yield from zip(counted, decoded, strict=False)
        return
    last = None
    for frame in decoded:
        at = _time(frame, video)
        if at < video.late or at == last:
            continue
        last = at
        yield 0 if at == video.late else at, frame


def _time(frame: VideoFrame, video: VideoTrack) -> int:
    if frame.pts is None or frame.time_base is None:
        raise Refused("has a frame without a time.", AGAIN)
    return round(frame.pts * frame.time_base * video.scale) - video.origin


def _decoded(container: InputContainer, video: VideoTrack, key: int | None) -> Iterator[VideoFrame]:
    stream = playable(container)
    for other in container.streams:
        if other is not stream:
            other.discard = Discard.all
    coming = packets(container, [stream])
    if key is not None:
        coming = _from_key(container, stream, video, key)
    for packet in coming:
        try:
            decoded = packet.decode()
        except av.error.InvalidDataError:
            continue  # what is missing is counted at the end
        yield from (frame for frame in decoded if isinstance(frame, VideoFrame))


def _from_key(
    container: InputContainer, stream: VideoStream, video: VideoTrack, key: int
) -> Iterator[av.Packet]:
    """Packets from the key frame with this stamp on; none if it cannot be found."""
    ticks = (stream.time_base or Fraction(1)) * video.scale
    for earlier_s in _EARLIER_S:
        try:
            container.seek(int((key - earlier_s * video.scale) / ticks), stream=stream)
        except av.error.FFmpegError:
            continue
        coming = packets(container, [stream])
        for packet in coming:
            if packet.dts is not None and packet.dts * ticks > key:
                break
            if packet.pts is not None and packet.pts * ticks == key and packet.is_keyframe:
                yield packet
                yield from coming
                return
