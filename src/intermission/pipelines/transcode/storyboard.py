"""Thumbnails to find a moment of a video by, and its poster.

They are made from key frames that are encoded already, one for each segment: nothing else is
decoded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from intermission import Context
from intermission.media import Limits
from intermission.media.encode_client import make_thumbnails
from intermission.media.fmp4 import Sample, first_sample, segment
from intermission.media.request import ThumbnailRequest
from intermission.pipelines.transcode.playlists import PlaylistTrack
from intermission.pipelines.transcode.results import Encoded
from intermission.pipelines.transcode.tracks import SegmentPaths
from intermission.settings import current

THUMBNAILS_MAX = 500
COLUMNS = ROWS = 5
WIDTH = 160
_POSTER_AT = 1 / 3
"""A third into the video: many begin black, or with titles."""


def make_poster(ctx: Context, track: PlaylistTrack, encoded: Sequence[Encoded | None]) -> None:
    """`poster.jpg`, as large as the rendition it is taken from."""
    one = track.segments[int(len(track.segments) * _POSTER_AT)].name
    (data,) = _sheets(ctx, track, encoded, [one], ThumbnailRequest(track.width, track.height))
    ctx.out("poster.jpg").write_bytes(data)


def make_storyboard(ctx: Context, track: PlaylistTrack, encoded: Sequence[Encoded | None]) -> None:
    """Sheets of thumbnails, and `storyboard.vtt`, which says where each is and when it is shown."""
    every = ceil(len(track.segments) / THUMBNAILS_MAX)
    segments = track.segments[::every]
    height = max(2, 2 * round(WIDTH * track.height / track.width / 2))
    size = ThumbnailRequest(WIDTH, height, COLUMNS, ROWS)
    names = [one.name for one in segments]
    for n, data in enumerate(_sheets(ctx, track, encoded, names, size)):
        ctx.out(_sheet(n)).write_bytes(data)
    ends = [*(one.start for one in segments[1:]), track.segments[-1].end]
    cues = ["WEBVTT"]
    for n, (one, end) in enumerate(zip(segments, ends, strict=True)):
        sheet, place = divmod(n, COLUMNS * ROWS)
        row, column = divmod(place, COLUMNS)
        cues.append(
            f"{_clock(one.start, track.scale)} --> {_clock(end, track.scale)}\n"
            f"{_sheet(sheet)}#xywh={column * WIDTH},{row * height},{WIDTH},{height}"
        )
    ctx.out("storyboard.vtt").write_text("\n\n".join(cues) + "\n", encoding="utf-8")


def _clock(ticks: int, scale: int) -> str:
    seconds, ms = divmod(ticks * 1000 // scale, 1000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{ms:03d}"


def _sheet(number: int) -> str:
    return f"storyboard/sheet_{number:03d}.jpg"


def _sheets(
    ctx: Context,
    track: PlaylistTrack,
    encoded: Sequence[Encoded | None],
    names: Sequence[str],
    size: ThumbnailRequest,
) -> list[bytes]:
    """The first frames of these segments."""
    paths = SegmentPaths(track.name, encoded)
    samples = [
        Sample(first_sample(paths[name].read_bytes()), n * track.scale, True)
        for n, name in enumerate(names)
    ]
    key_frames = segment(0, samples, len(samples) * track.scale)
    assert ctx.folder is not None
    with tempfile.TemporaryDirectory(prefix="thumbnails-", dir=ctx.folder.parent) as folder:
        path = Path(folder, "keys.mp4")
        path.write_bytes(paths["init.mp4"].read_bytes() + key_frames)
        return make_thumbnails(path, size, limits=Limits.of(current()))
