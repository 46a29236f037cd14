"""The frame rate that players are told: arithmetic only.

Frames divided by duration is wrong: with one frame that is shown longer, or a gap where something
was cut out, 23.976 becomes 23.9. So a video counts as regular if nearly all of its frames follow
each other at the same distance, and that distance is the rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from statistics import median_low

_JITTER_S = Fraction(3, 2000)
"""Distances differ by less than this in a regular video whose clock counts milliseconds."""
_ODD_MAX = 0.1
"""The share of distances that may differ in a regular video: gaps, and frames shown longer."""
_EVEN_MIN = 2
_NTSC = Fraction(1000, 1001)


def rate_of(shown: Sequence[int], end: int, scale: int) -> Fraction:
    """The rate of frames shown at these times, in ticks; the average where it varies."""
    steps = [after - at for at, after in pairwise(shown)]
    usual = median_low(steps) if steps else 0
    jitter = int(_JITTER_S * scale)
    even = [step for step in steps if abs(step - usual) <= jitter]
    odd = len(steps) - len(even)
    if len(even) < _EVEN_MIN or odd > max(1, _ODD_MAX * len(steps)):
        return Fraction(len(shown) * scale, max(1, end)).limit_denominator(1001)
    rate = Fraction(len(even) * scale, max(1, sum(even)))
    # Every run of frames begins and ends with a stamp that may have been rounded.
    return _nominal(rate, (odd + 1) * _JITTER_S * scale / max(1, sum(even)))


def _nominal(rate: Fraction, error: Fraction) -> Fraction:
    """The nominal rate, if one is near enough: 24, or 24 times 1000/1001."""
    whole = (max(1, round(rate / unit)) * unit for unit in (Fraction(1), _NTSC))
    nearest = min(whole, key=lambda one: abs(one - rate))
    if abs(nearest - rate) <= error * rate:
        return nearest
    return rate.limit_denominator(1001)
