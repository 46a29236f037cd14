"""Asking a child to encode video and audio, and checking the segments it returns.

That the child ended well proves nothing. Every segment is read back: it must begin where the one
before it ended, with a key frame, and hold as many frames as the video has there.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from intermission.errors import MediaError
from intermission.media.child_client import ChildClient
from intermission.media.fmp4 import NotASegment, Segment, read_segment
from intermission.media.info import Limits, MediaInfo
from intermission.media.reading import DEFAULT, Pathish, info_of, name_of, request_for
from intermission.media.request import AudioRequest, EncodeRequest, ThumbnailRequest
from intermission.media.video_info import EncoderSettings, Section, VideoTrack

SEGMENT_MAX_BYTES = 1 << 28
_STAMP_BYTES = 8
_SHARES = 6
"""A section is at most this fraction of what is left."""
_SHORT_S = 16
"""But at least this long, if longer ones were asked for."""
_JPEG = b"\xff\xd8\xff"

Keep = Callable[[int, bytes, Segment | None], object]
"""Called with the number of the rendition, bytes, and the segment they hold: None for the
initialization segment."""
OnProgress = Callable[[float], object]


@dataclass(frozen=True)
class FrameIndex:
    """A source, its video if it has one, when each frame is shown, and the key frames."""

    info: MediaInfo
    video: VideoTrack | None
    shown: array[int]
    keys: array[int]


def index_frames(path: Pathish, *, limits: Limits = DEFAULT) -> FrameIndex:
    """When every frame of the video is shown, from its packets; as a rule, nothing is decoded."""
    with (
        request_for("index_frames", path, limits) as request,
        ChildClient(request, name_of(path)) as child,
    ):
        info = info_of(child, request)
        deadline = time.monotonic() + limits.whole_wall_s(info.duration_ms, info.size_bytes)
        message = child.listen(deadline)
        if "video" in message and message["video"] is None:
            return FrameIndex(info, None, array("q"), array("q"))
        try:
            video, keys = VideoTrack.from_json(message["video"]), int(message["keys"])
        except (KeyError, TypeError, ValueError) as e:
            raise child.invalid_answer() from e
        if not 0 < video.frames <= info.size_bytes or not 0 <= keys <= video.frames:
            raise child.invalid_answer()
        stamps = array("q", child.take((video.frames + keys) * _STAMP_BYTES, deadline))
    return FrameIndex(info, video, stamps[: video.frames], stamps[video.frames :])


def encode_video(
    path: Pathish,
    video: VideoTrack,
    section: Section,
    settings: EncoderSettings,
    keep: Keep,
    *,
    wall_s: float,
    limits: Limits = DEFAULT,
    on_progress: OnProgress | None = None,
) -> None:
    """EncodeRequest a section in every size. Raises unless the result is what was asked for."""
    with request_for("encode", path, limits) as request:
        request = replace(request, encode=EncodeRequest(video, section, settings))
        with ChildClient(request, name_of(path)) as child:
            info_of(child, request)
            tracks = [Check(section) for _ in section.renditions]
            _receive(child, time.monotonic() + wall_s, tracks, keep, on_progress)
            for track in tracks:
                track.finish(name_of(path))


def encode_audio(
    path: Pathish,
    wanted: AudioRequest,
    keep: Keep,
    *,
    limits: Limits = DEFAULT,
    on_progress: OnProgress | None = None,
) -> int:
    """EncodeRequest an audio track from end to end; how many samples it has."""
    with request_for("audio", path, limits) as request:
        request = replace(request, audio=wanted)
        with ChildClient(request, name_of(path)) as child:
            info = info_of(child, request)
            wall_s = limits.whole_wall_s(info.duration_ms, info.size_bytes)
            check = _AudioCheck()
            told = _receive(child, time.monotonic() + wall_s, [check], keep, on_progress)
            samples = int(told["extracted"]["samples"])
            if not check.end - 1024 < samples <= check.end:
                raise child.invalid_answer()
            return samples


def make_thumbnails(
    path: Pathish, wanted: ThumbnailRequest, *, limits: Limits = DEFAULT
) -> list[bytes]:
    """Every frame of a video as JPEG, several on a sheet."""
    made: list[bytes] = []
    with request_for("thumbnails", path, limits) as request:
        request = replace(request, thumbnails=wanted)
        with ChildClient(request, name_of(path)) as child:
            info = info_of(child, request)
            deadline = time.monotonic() + limits.whole_wall_s(info.duration_ms, info.size_bytes)
            _receive(child, deadline, [None], lambda _, data, __: made.append(data), None)
    if not all(data.startswith(_JPEG) for data in made):
        raise MediaError(f"the thumbnails of {name_of(path)} are not JPEG files.")
    return made


def _receive(
    child: ChildClient,
    deadline: float,
    tracks: list[Any],
    keep: Keep,
    on_progress: OnProgress | None,
) -> dict[str, Any]:
    """Check and keep all data that the child sends; its last other message."""
    last: dict[str, Any] = {}
    while "end" not in (message := child.listen(deadline)):
        if "data" not in message:
            last = message
            if on_progress is not None and "progress" in message:
                on_progress(float(message["progress"]))
            continue
        try:
            told = message["data"]
            what, rendition, size_bytes = told["what"], int(told["rendition"]), int(told["bytes"])
            track = tracks[rendition]
            if not 0 < size_bytes <= SEGMENT_MAX_BYTES or rendition < 0:
                raise ValueError(size_bytes)
            data = child.take(size_bytes, deadline)
            found = track.take(read_segment(data)) if what == "segment" else None
        except (KeyError, TypeError, ValueError, IndexError) as e:
            raise child.invalid_answer() from e
        keep(rendition, data, found)
    return last


class Check:
    """Checks the segments of one rendition of a section."""

    def __init__(self, section: Section) -> None:
        self._section = section
        self._frames = 0
        self._next = 0

    def take(self, found: Segment) -> Segment:
        ends = [*self._section.cuts[1:], self._section.end]
        if (
            found.number != self._section.first_segment + self._next
            or found.start != self._section.cuts[self._next]
            or found.end != ends[self._next]
            or found.keys[:1] != (found.start,)
        ):
            raise NotASegment("it is not the segment that was asked for")
        self._frames += len(found.shown)
        self._next += 1
        return found

    def finish(self, name: str) -> None:
        expected = len(self._section.cuts), self._section.frames
        if (self._next, self._frames) != expected:
            raise MediaError(
                f"{name}: expected {expected[1]} frames in {expected[0]} segments, the encoder "
                f"made {self._frames} in {self._next}."
            )


class _AudioCheck:
    """Checks the segments of an audio track: no gap, from the first moment on."""

    def __init__(self) -> None:
        self.end = 0
        self._number = 0

    def take(self, found: Segment) -> Segment:
        if (found.number, found.start) != (self._number, self.end):
            raise NotASegment("it does not follow the segment before")
        self.end = found.end
        self._number += 1
        return found


def split(
    video: VideoTrack, shown: array[int], keys: array[int], *, segment_s: int, section_s: int
) -> list[Section]:
    """A video in sections of at most this length, whole numbers of segments, without sizes yet.

    Towards the end they become shorter, so that nothing waits for a long one that started last.
    One may be up to a third shorter, to end near a key frame, from which the next is decoded.
    """
    cuts, made, first = _cuts(video, shown, segment_s), [], 0
    most, least = max(1, section_s // segment_s), -(-_SHORT_S // segment_s)
    while first < len(cuts):
        left = len(cuts) - first
        length = min(most, max(least, left // _SHARES)) if video.has_stamps else left
        ends = range(first + length, first + length - length // 3 - 1, -1) if length < left else ()
        end = min(ends, key=lambda n: _way(keys, cuts[n]), default=len(cuts))
        made.append(_section(video, shown, keys, cuts, first, end))
        first = end
    return made


def _way(keys: array[int], at: int) -> int:
    """How far a moment is from the key frame before it."""
    n = bisect_right(keys, at)
    return at - keys[n - 1] if n else at


def section_at(
    video: VideoTrack,
    shown: array[int],
    keys: array[int],
    *,
    segment_s: int,
    first: int,
    segments: int,
) -> Section:
    """The section that begins with this segment and has so many, or as many as there are."""
    cuts = _cuts(video, shown, segment_s)
    return _section(video, shown, keys, cuts, first, first + segments)


def longest_segment(video: VideoTrack, shown: array[int], segment_s: int) -> int:
    """Ticks of the longest segment: a frame that is shown long makes a long one."""
    cuts = [*_cuts(video, shown, segment_s), video.end]
    return max(after - at for at, after in pairwise(cuts))


def _section(
    video: VideoTrack, shown: array[int], keys: array[int], cuts: list[int], first: int, end: int
) -> Section:
    mine = tuple(cuts[first:end])
    end_at = cuts[end] if end < len(cuts) else video.end
    frames = bisect_left(shown, end_at) - bisect_left(shown, mine[0])
    return Section(mine, end_at, frames, first, _keys(video, keys, mine[0]) if first else ())


def _cuts(video: VideoTrack, shown: array[int], segment_s: int) -> list[int]:
    """A segment begins with the first frame at or after each multiple of its length."""
    cuts: list[int] = []
    for n in range(video.end // (segment_s * video.scale) + 1):
        at = bisect_left(shown, n * segment_s * video.scale)
        if at < len(shown) and (not cuts or shown[at] > cuts[-1]):
            cuts.append(shown[at])
    return cuts


def _keys(video: VideoTrack, keys: array[int], at: int) -> tuple[int, ...]:
    """Stamps of the two key frames to begin with: earlier ones where frames need neighbours."""
    n = bisect_left(keys, at + 1) - bool(video.is_interlaced)
    return tuple(key + video.origin for key in reversed(keys[max(0, n - 2) : max(0, n)]))
