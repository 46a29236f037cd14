"""Where decoded audio belongs in time: arithmetic only, no libav.

Sample n of the output is media time n / rate. Times are whole ticks, each so short that it
divides every common sample rate, frame rate and time base. Recordings lose packets, start late
and overlap; some carry time stamps that mean nothing. Those are not followed: a stamp beyond the
horizon, or one that jumps back by more than an overlap can explain, only moves the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

TICKS_PER_S = 705_600_000

GAP = TICKS_PER_S // 10
"""Stamps jitter by less than this; only beyond it is there a gap or an overlap."""
OVERLAP_MAX = TICKS_PER_S
"""A jump back by more than this is a restarted clock, not audio stored twice."""


@dataclass(frozen=True)
class Place:
    """What to do before a piece of audio is appended."""

    silence_until: int | None = None
    """Fill with silence up to this time."""
    drop: int = 0
    """Leave out this much from here on: the output has it already."""


FOLLOWS = Place()


class Timeline:
    """Follows the pieces of one audio track in the order they were decoded."""

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._next = 0
        self._tolerated = 0  # the first piece starts where its stamp says, to the sample
        self._shift = 0

    def place(self, at: int | None, length: int) -> Place:
        """Where a piece stamped `at` (None: no stamp) of this length goes."""
        tolerated, self._tolerated = self._tolerated, GAP
        at = self._next if at is None else at + self._shift
        off = at - self._next
        place = FOLLOWS
        if off > tolerated and at <= self._horizon:
            place = Place(silence_until=at)
            self._next = at
        elif -OVERLAP_MAX <= off < -tolerated:
            place = Place(drop=-off)
            self._next = at
        elif abs(off) > tolerated:
            self._shift -= off
        self._next += length
        return place
