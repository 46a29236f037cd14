"""Which qualities a film is offered in: arithmetic only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from intermission.errors import Permanent
from intermission.media.film import Film

KBPS = {2160: 15_000, 1440: 8_000, 1080: 5_000, 720: 2_500, 480: 1_000, 360: 600}
"""By lines: what a quality takes at most, unless the ladder says otherwise."""
_RUNG = re.compile(r"(\d{2,4})p(?:=(\d{2,6})k)?")
_NEAR = 0.95
"""A film with nearly as many lines as a quality counts as one: 1,036 lines are no 720p film."""


@dataclass(frozen=True)
class Asked:
    """A quality somebody asked for."""

    lines: int
    kbps: int

    @property
    def name(self) -> str:
        return f"{self.lines}p"


class Quality(BaseModel):
    """A quality the film is offered in."""

    name: str
    width: int
    height: int
    kbps: int


class Skipped(BaseModel):
    """A quality that was asked for and makes no sense here."""

    name: str
    reason: str


class Rungs(BaseModel):
    """What becomes of every quality that was asked for; the largest first."""

    qualities: list[Quality]
    skipped: list[Skipped]
    fps: str = ""
    """Pictures a second in each of them, as a fraction: 24000/1001."""


def parse(text: str) -> list[Asked]:
    """The qualities in a ladder such as `1080p=6000k,720p,360p`, largest first."""
    asked: dict[int, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = _RUNG.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r} is no quality: write 720p, or 720p=3000k")
        lines = int(found[1])
        if lines in asked:
            raise ValueError(f"{lines}p is there twice")
        asked[lines] = int(found[2]) if found[2] else _usual_kbps(lines)
    if not asked:
        raise ValueError("a ladder has at least one quality")
    return [Asked(lines, asked[lines]) for lines in sorted(asked, reverse=True)]


def _usual_kbps(lines: int) -> int:
    """Of a quality between two known ones, what its number of pixels calls for."""
    if lines in KBPS:
        return KBPS[lines]
    near = min(KBPS, key=lambda known: abs(known - lines))
    return max(64, round(KBPS[near] * (lines / near) ** 1.6))


def _checked(text: str) -> str:
    return ",".join(f"{one.name}={one.kbps}k" for one in parse(text))


Ladder = Annotated[
    str,
    AfterValidator(_checked),
    Field(description="qualities, with bit rates if wanted: 1080p=6000k,720p"),
]
DEFAULT = _checked(",".join(f"{lines}p" for lines in KBPS))


def choose(film: Film, ladder: str) -> Rungs:
    """The qualities that are no larger than the film; at least one.

    A quality is named by the shorter side of its pictures, so that a film that stands upright is
    offered in the same qualities as one that lies.
    """
    short = min(film.width, film.height)
    asked = parse(ladder)
    fitting = [one for one in asked if one.lines * _NEAR <= short]
    if not fitting:  # smaller than everything that was asked for: as it is
        fitting = [Asked(short, min(one.kbps for one in asked))]
    qualities = [_quality(film, one) for one in fitting]
    skipped = [
        Skipped(name=one.name, reason=f"the source has only {short} lines")
        for one in asked
        if one not in fitting
    ]
    return Rungs(qualities=qualities, skipped=skipped)


def _quality(film: Film, asked: Asked) -> Quality:
    short = min(film.width, film.height)
    if short < 2 or max(film.width, film.height) < 2:
        raise Permanent(f"pictures of {film.width} by {film.height} cannot be encoded.")
    width, height = film.size_at(asked.lines)
    return Quality(name=asked.name, width=width, height=height, kbps=asked.kbps)
