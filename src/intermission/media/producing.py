"""What a player is given, made by a child and checked here: segments of pictures and of sound.

That the child came to its end proves nothing. Every segment is read back: it must begin where
the one before it ended, with a key frame, and hold as many pictures as the film has there.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from intermission.errors import MediaError
from intermission.media.conversation import Conversation
from intermission.media.film import Coding, Film, Passage
from intermission.media.fragments import NotASegment, Segment, read_segment
from intermission.media.info import Limits, MediaInfo
from intermission.media.order import Encode, Soundtrack, Stills
from intermission.media.reading import DEFAULT, Pathish, info_of, name_of, order_for

SEGMENT_MAX_BYTES = 1 << 28
_STAMP_BYTES = 8
_SHARES = 6
"""A passage is no more than one of so many shares of what is left."""
_SHORT_S = 16
"""But not shorter than that, if longer ones were asked for."""
_JPEG = b"\xff\xd8\xff"

Keep = Callable[[int, bytes, Segment | None], object]
"""Called with a rung, bytes, and what they hold: None for what comes before the segments."""
OnProgress = Callable[[float], object]


@dataclass(frozen=True)
class Survey:
    """A source, its film if it has one, when each picture is shown, and the key frames."""

    info: MediaInfo
    film: Film | None
    shown: array[int]
    keys: array[int]


def survey(path: Pathish, *, limits: Limits = DEFAULT) -> Survey:
    """When every picture of the film is shown, from its packets; nothing is decoded for it."""
    with order_for("survey", path, limits) as order, Conversation(order, name_of(path)) as child:
        info = info_of(child, order)
        deadline = time.monotonic() + limits.whole_wall_s(info.duration_ms, info.size_bytes)
        message = child.listen(deadline)
        if "film" in message and message["film"] is None:
            return Survey(info, None, array("q"), array("q"))
        try:
            film, keys = Film.from_json(message["film"]), int(message["keys"])
        except (KeyError, TypeError, ValueError) as e:
            raise child.nonsense() from e
        if not 0 < film.frames <= info.size_bytes or not 0 <= keys <= film.frames:
            raise child.nonsense()
        stamps = array("q", child.take((film.frames + keys) * _STAMP_BYTES, deadline))
    return Survey(info, film, stamps[: film.frames], stamps[film.frames :])


def encode(
    path: Pathish,
    film: Film,
    passage: Passage,
    coding: Coding,
    keep: Keep,
    *,
    wall_s: float,
    limits: Limits = DEFAULT,
    on_progress: OnProgress | None = None,
) -> None:
    """Encode a passage in every size; what is kept is what was asked for, or this raises."""
    with order_for("encode", path, limits) as order:
        order = replace(order, encode=Encode(film, passage, coding))
        with Conversation(order, name_of(path)) as child:
            info_of(child, order)
            tracks = [Check(passage) for _ in passage.rungs]
            _take_pieces(child, time.monotonic() + wall_s, tracks, keep, on_progress)
            for track in tracks:
                track.finish(name_of(path))


def soundtrack(
    path: Pathish,
    wanted: Soundtrack,
    keep: Keep,
    *,
    limits: Limits = DEFAULT,
    on_progress: OnProgress | None = None,
) -> int:
    """Encode a track of sound from end to end; how many samples it has."""
    with order_for("soundtrack", path, limits) as order:
        order = replace(order, soundtrack=wanted)
        with Conversation(order, name_of(path)) as child:
            info = info_of(child, order)
            wall_s = limits.whole_wall_s(info.duration_ms, info.size_bytes)
            check = _Sound()
            told = _take_pieces(child, time.monotonic() + wall_s, [check], keep, on_progress)
            samples = int(told["extracted"]["samples"])
            if not check.end - 1024 < samples <= check.end:
                raise child.nonsense()
            return samples


def stills(path: Pathish, wanted: Stills, *, limits: Limits = DEFAULT) -> list[bytes]:
    """Every picture of a film, as JPEG, so many on a sheet."""
    made: list[bytes] = []
    with order_for("stills", path, limits) as order:
        order = replace(order, stills=wanted)
        with Conversation(order, name_of(path)) as child:
            info = info_of(child, order)
            deadline = time.monotonic() + limits.whole_wall_s(info.duration_ms, info.size_bytes)
            _take_pieces(child, deadline, [None], lambda _, data, __: made.append(data), None)
    if not all(data.startswith(_JPEG) for data in made):
        raise MediaError(f"{name_of(path)} came out as something else than pictures.")
    return made


def _take_pieces(
    child: Conversation,
    deadline: float,
    tracks: list[Any],
    keep: Keep,
    on_progress: OnProgress | None,
) -> dict[str, Any]:
    """Keep every piece that stands its check; the last thing that was said besides."""
    last: dict[str, Any] = {}
    while "end" not in (message := child.listen(deadline)):
        if "piece" not in message:
            last = message
            if on_progress is not None and "progress" in message:
                on_progress(float(message["progress"]))
            continue
        try:
            told = message["piece"]
            what, rung, size_bytes = told["what"], int(told["rung"]), int(told["bytes"])
            track = tracks[rung]
            if not 0 < size_bytes <= SEGMENT_MAX_BYTES or rung < 0:
                raise ValueError(size_bytes)
            data = child.take(size_bytes, deadline)
            found = track.take(read_segment(data)) if what == "segment" else None
        except (KeyError, TypeError, ValueError, IndexError) as e:
            raise child.nonsense() from e
        keep(rung, data, found)
    return last


class Check:
    """What one quality of a passage must come to."""

    def __init__(self, passage: Passage) -> None:
        self._passage = passage
        self._frames = 0
        self._next = 0

    def take(self, found: Segment) -> Segment:
        ends = [*self._passage.cuts[1:], self._passage.end]
        if (
            found.number != self._passage.first_segment + self._next
            or found.start != self._passage.cuts[self._next]
            or found.end != ends[self._next]
            or found.keys[:1] != (found.start,)
        ):
            raise NotASegment("it is not the one that was asked for")
        self._frames += len(found.shown)
        self._next += 1
        return found

    def finish(self, name: str) -> None:
        expected = len(self._passage.cuts), self._passage.frames
        if (self._next, self._frames) != expected:
            raise MediaError(
                f"{name} came out as {self._frames} pictures in {self._next} segments, where "
                f"{expected[1]} in {expected[0]} were asked for."
            )


class _Sound:
    """What a track of sound must come to: segments without a gap, from the first moment on."""

    def __init__(self) -> None:
        self.end = 0
        self._number = 0

    def take(self, found: Segment) -> Segment:
        if (found.number, found.start) != (self._number, self.end):
            raise NotASegment("it does not follow the one before")
        self.end = found.end
        self._number += 1
        return found


def cut(
    film: Film, shown: array[int], keys: array[int], *, segment_s: int, passage_s: int
) -> list[Passage]:
    """A film in passages of this length at most, whole numbers of segments, as yet without rungs.

    Towards the end they become shorter, so that nobody waits for a long one that was begun last.
    One may be a third shorter, to end near a key frame: the next is decoded from there on.
    """
    cuts, made, first = _cuts(film, shown, segment_s), [], 0
    most, least = max(1, passage_s // segment_s), -(-_SHORT_S // segment_s)
    while first < len(cuts):
        left = len(cuts) - first
        length = min(most, max(least, left // _SHARES)) if film.has_stamps else left
        ends = range(first + length, first + length - length // 3 - 1, -1) if length < left else ()
        end = min(ends, key=lambda n: _way(keys, cuts[n]), default=len(cuts))
        made.append(_passage(film, shown, keys, cuts, first, end))
        first = end
    return made


def _way(keys: array[int], at: int) -> int:
    """How far a moment is from the key frame before it."""
    n = bisect_right(keys, at)
    return at - keys[n - 1] if n else at


def passage_of(
    film: Film,
    shown: array[int],
    keys: array[int],
    *,
    segment_s: int,
    first: int,
    segments: int,
) -> Passage:
    """The passage that begins with this segment and has so many, or as many as there are."""
    cuts = _cuts(film, shown, segment_s)
    return _passage(film, shown, keys, cuts, first, first + segments)


def _passage(
    film: Film, shown: array[int], keys: array[int], cuts: list[int], first: int, end: int
) -> Passage:
    mine = tuple(cuts[first:end])
    end_at = cuts[end] if end < len(cuts) else film.end
    frames = bisect_left(shown, end_at) - bisect_left(shown, mine[0])
    return Passage(mine, end_at, frames, first, _keys(film, keys, mine[0]) if first else ())


def _cuts(film: Film, shown: array[int], segment_s: int) -> list[int]:
    """A segment begins with the first picture at or after each multiple of its length."""
    cuts: list[int] = []
    for n in range(film.end // (segment_s * film.scale) + 1):
        at = bisect_left(shown, n * segment_s * film.scale)
        if at < len(shown) and (not cuts or shown[at] > cuts[-1]):
            cuts.append(shown[at])
    return cuts


def _keys(film: Film, keys: array[int], at: int) -> tuple[int, ...]:
    """Stamps of the two key frames to begin with: earlier ones where pictures need neighbours."""
    n = bisect_left(keys, at + 1) - bool(film.is_interlaced)
    return tuple(key + film.origin for key in reversed(keys[max(0, n - 2) : max(0, n)]))
