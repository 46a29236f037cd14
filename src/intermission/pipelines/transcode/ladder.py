"""Which renditions a video gets: arithmetic only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from intermission.errors import Permanent
from intermission.media.video_info import VideoTrack

KBPS = {2160: 15_000, 1440: 8_000, 1080: 5_000, 720: 2_500, 480: 1_000, 360: 600}
"""By lines: the highest bit rate of a rendition, unless the ladder gives one."""
_RENDITION = re.compile(r"(\d{2,4})p(?:=(\d{2,6})k)?")
_NEAR = 0.95
"""A video with nearly as many lines as a rendition gets it: 1,036 lines are shown as 1080p."""


@dataclass(frozen=True)
class Asked:
    """A rendition of the ladder, as it was asked for."""

    lines: int
    kbps: int

    @property
    def name(self) -> str:
        return f"{self.lines}p"


class Rendition(BaseModel):
    """A rendition that the video gets."""

    name: str
    width: int
    height: int
    kbps: int


class Skipped(BaseModel):
    """A rendition of the ladder that the video is too small for."""

    name: str
    reason: str


class Renditions(BaseModel):
    """What becomes of every rendition of the ladder; the largest first."""

    chosen: list[Rendition]
    skipped: list[Skipped]
    fps: str = ""
    """The most frames per second in each of them, as a fraction: 24000/1001."""
    mean_fps: str = ""
    """The average, which is the same in a regular video."""
    longest_segment: int = 0
    """Ticks of the longest segment in each of them."""


def parse(text: str) -> list[Asked]:
    """The renditions in a ladder such as `1080p=6000k,720p,360p`, largest first."""
    asked: dict[int, int] = {}
    for entry in filter(None, (entry.strip() for entry in text.split(","))):
        found = _RENDITION.fullmatch(entry)
        if found is None:
            raise ValueError(f"{entry!r} is not a rendition: write 720p or 720p=3000k")
        lines = int(found[1])
        if lines in asked:
            raise ValueError(f"{lines}p appears twice")
        asked[lines] = int(found[2]) if found[2] else _usual_kbps(lines)
    if not asked:
        raise ValueError("a ladder needs at least one rendition")
    return [Asked(lines, asked[lines]) for lines in sorted(asked, reverse=True)]


def _usual_kbps(lines: int) -> int:
    """The bit rate of a rendition between two known ones, by its number of pixels."""
    if lines in KBPS:
        return KBPS[lines]
    near = min(KBPS, key=lambda known: abs(known - lines))
    return max(64, round(KBPS[near] * (lines / near) ** 1.6))


def _checked(text: str) -> str:
    return ",".join(f"{one.name}={one.kbps}k" for one in parse(text))


Ladder = Annotated[
    str,
    AfterValidator(_checked),
    Field(description="renditions, with bit rates if you like: 1080p=6000k,720p"),
]
DEFAULT = _checked(",".join(f"{lines}p" for lines in KBPS))


def choose(video: VideoTrack, ladder: str) -> Renditions:
    """The renditions that are no larger than the video; at least one.

    A rendition is named by the shorter side of its frames, so that a portrait video gets the same
    renditions as a landscape one.
    """
    short = min(video.width, video.height)
    asked = parse(ladder)
    fitting = [one for one in asked if one.lines * _NEAR <= short]
    if not fitting:  # smaller than everything that was asked for: as it is
        fitting = [Asked(short, min(one.kbps for one in asked))]
    chosen = [_rendition(video, one) for one in fitting]
    skipped = [
        Skipped(name=one.name, reason=f"the source has only {short} lines")
        for one in asked
        if one not in fitting
    ]
    return Renditions(chosen=chosen, skipped=skipped)


def _rendition(video: VideoTrack, asked: Asked) -> Rendition:
    short = min(video.width, video.height)
    if short < 2 or max(video.width, video.height) < 2:
        raise Permanent(f"frames of {video.width} by {video.height} pixels cannot be encoded.")
    width, height = video.size_at(asked.lines)
    return Rendition(name=asked.name, width=width, height=height, kbps=asked.kbps)
