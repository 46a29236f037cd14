"""Pictures to find a moment of a film by, and one that stands for it.

They come from key frames that are encoded already, one of each segment: nothing else is decoded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from intermission import Context
from intermission.media import Limits
from intermission.media.fragments import Sample, first_sample, segment
from intermission.media.order import Stills
from intermission.media.producing import stills
from intermission.pipelines.transcode.playlists import Rendition
from intermission.pipelines.transcode.renditions import Segments
from intermission.pipelines.transcode.shapes import Encoded
from intermission.settings import current

PICTURES_MAX = 500
COLUMNS = ROWS = 5
WIDTH = 160
_POSTER_AT = 1 / 3
"""Films begin black, or with names."""


def make_poster(ctx: Context, track: Rendition, encoded: Sequence[Encoded | None]) -> None:
    """`poster.jpg`, as large as the quality it is taken from."""
    one = track.parts[int(len(track.parts) * _POSTER_AT)].name
    (data,) = _sheets(ctx, track, encoded, [one], Stills(track.width, track.height))
    ctx.out("poster.jpg").write_bytes(data)


def make_storyboard(ctx: Context, track: Rendition, encoded: Sequence[Encoded | None]) -> None:
    """Sheets of small pictures, and `storyboard.vtt`, which says what is where and when."""
    every = ceil(len(track.parts) / PICTURES_MAX)
    parts = track.parts[::every]
    height = max(2, 2 * round(WIDTH * track.height / track.width / 2))
    size = Stills(WIDTH, height, COLUMNS, ROWS)
    names = [part.name for part in parts]
    for n, data in enumerate(_sheets(ctx, track, encoded, names, size)):
        ctx.out(_sheet(n)).write_bytes(data)
    ends = [*(part.start for part in parts[1:]), track.parts[-1].end]
    cues = ["WEBVTT"]
    for n, (part, end) in enumerate(zip(parts, ends, strict=True)):
        sheet, place = divmod(n, COLUMNS * ROWS)
        row, column = divmod(place, COLUMNS)
        cues.append(
            f"{_clock(part.start, track.scale)} --> {_clock(end, track.scale)}\n"
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
    track: Rendition,
    encoded: Sequence[Encoded | None],
    names: Sequence[str],
    size: Stills,
) -> list[bytes]:
    """The first pictures of these segments."""
    paths = Segments(track.name, encoded)
    samples = [
        Sample(first_sample(paths[name].read_bytes()), n * track.scale, True)
        for n, name in enumerate(names)
    ]
    film = segment(0, samples, len(samples) * track.scale)
    assert ctx.folder is not None
    with tempfile.TemporaryDirectory(prefix="stills-", dir=ctx.folder.parent) as folder:
        path = Path(folder, "keys.mp4")
        path.write_bytes(paths["init.mp4"].read_bytes() + film)
        return stills(path, size, limits=Limits.of(current()))
