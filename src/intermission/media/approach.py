"""The pictures of a passage, decoded from a key frame at or before it. Runs in the child only.

A search by time ends where the container's index leads it, which may be anywhere near. So packets
are left out until the key frame itself comes, and what is decoded from it counts only if the first
picture of the passage is among it; else an earlier key frame is tried, and at last the beginning.
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

from intermission.media.film import Film, Passage
from intermission.media.opening import packets
from intermission.media.pictures import Reopen, playable
from intermission.media.refusal import AGAIN, Refused

_EARLIER_S = (0, 1, 4, 16)
"""How far before a key frame to search, in turn: some containers know their places roughly."""
_NEIGHBOURS = 3
"""How many pictures before the first are wanted by a filter that looks at neighbours."""

Timed = tuple[int, VideoFrame]
"""A picture and when it is shown."""


@contextmanager
def pictures_of(
    reopen: Reopen, film: Film, passage: Passage, counted: Sequence[int]
) -> Iterator[Iterator[Timed]]:
    """The pictures of a passage in order, a few before it, and all that come after.

    `counted` is when each picture is shown, for a film whose pictures cannot be told by their
    times.
    """
    for key in (*passage.keys, None):
        with reopen() as container:
            timed = _timed(_decoded(container, film, key), film, counted)
            before, first = _first(timed, film, passage)
            if key is not None and (first is None or first[0] != passage.cuts[0]):
                continue
            yield chain(before, () if first is None else (first,), timed)
            return


def _first(
    timed: Iterator[Timed], film: Film, passage: Passage
) -> tuple[Iterator[Timed], Timed | None]:
    """The last pictures before the passage as far as they are needed, and its first."""
    before: deque[Timed] = deque(maxlen=_NEIGHBOURS if film.is_interlaced else 0)
    for at, frame in timed:
        if at >= passage.cuts[0]:
            return iter(before), (at, frame)
        before.append((at, frame))
    return iter(before), None


def _timed(decoded: Iterator[VideoFrame], film: Film, counted: Sequence[int]) -> Iterator[Timed]:
    """Each picture with its time; of two that are shown at the same time, the first."""
    if not film.has_stamps:
        yield from zip(counted, decoded, strict=False)
        return
    last = None
    for frame in decoded:
        at = _time(frame, film)
        if at < film.late or at == last:
            continue
        last = at
        yield 0 if at == film.late else at, frame


def _time(frame: VideoFrame, film: Film) -> int:
    if frame.pts is None or frame.time_base is None:
        raise Refused("has a picture without a time.", AGAIN)
    return round(frame.pts * frame.time_base * film.scale) - film.origin


def _decoded(container: InputContainer, film: Film, key: int | None) -> Iterator[VideoFrame]:
    stream = playable(container)
    for other in container.streams:
        if other is not stream:
            other.discard = Discard.all
    coming = packets(container, [stream])
    if key is not None:
        coming = _from_key(container, stream, film, key)
    for packet in coming:
        try:
            decoded = packet.decode()
        except av.error.InvalidDataError:
            continue  # what is missing is counted at the end
        yield from (frame for frame in decoded if isinstance(frame, VideoFrame))


def _from_key(
    container: InputContainer, stream: VideoStream, film: Film, key: int
) -> Iterator[av.Packet]:
    """Packets from the key frame with this stamp on; none if it cannot be found."""
    ticks = (stream.time_base or Fraction(1)) * film.scale
    for earlier_s in _EARLIER_S:
        try:
            container.seek(int((key - earlier_s * film.scale) / ticks), stream=stream)
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
