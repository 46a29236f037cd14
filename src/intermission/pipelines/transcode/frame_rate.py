"""The frame rates that players are told: arithmetic only.

Frames divided by duration is wrong: with one frame that is shown longer, or a gap where something
was cut out, 23.976 becomes 23.9. So the distances between frames decide. HLS asks for the maximum,
by which a player decides whether it can keep up; DASH for the average, where the rate varies.
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
    """The highest rate of frames shown at these times, in ticks."""
    steps = [after - at for at, after in pairwise(shown)]
    if not steps:
        return _average(shown, end, scale)
    jitter = int(_JITTER_S * scale)
    even = _even(steps, jitter)
    odd = len(steps) - len(even)
    rate = Fraction(len(even) * scale, max(1, sum(even)))
    # Every run of frames begins and ends with a stamp that may have been rounded.
    runs = min(odd + 1, len(even))
    return _nominal(rate, runs * _JITTER_S * scale / max(1, sum(even)))


def mean_of(shown: Sequence[int], end: int, scale: int) -> Fraction:
    """The average rate; that of a regular video without its gaps."""
    steps = [after - at for at, after in pairwise(shown)]
    even = _even(steps, int(_JITTER_S * scale)) if steps else []
    odd = len(steps) - len(even)
    if len(even) < _EVEN_MIN or odd > max(1, _ODD_MAX * len(steps)):
        return _average(shown, end, scale)
    return rate_of(shown, end, scale)


def _even(steps: Sequence[int], jitter: int) -> list[int]:
    """The distances of frames at the highest rate.

    Two in a row must be alike, because one alone may be a seam. Only if there are none, the
    shortest of all counts.
    """
    alike = [max(pair) for pair in pairwise(steps) if abs(pair[0] - pair[1]) <= jitter]
    shortest = min(alike, default=min(steps))
    usual = median_low([step for step in steps if abs(step - shortest) <= 2 * jitter])
    return [step for step in steps if abs(step - usual) <= jitter]


def _average(shown: Sequence[int], end: int, scale: int) -> Fraction:
    return Fraction(len(shown) * scale, max(1, end)).limit_denominator(1001)


def _nominal(rate: Fraction, error: Fraction) -> Fraction:
    """The nominal rate, if one is near enough: 24, or 24 times 1000/1001."""
    whole = (max(1, round(rate / unit)) * unit for unit in (Fraction(1), _NTSC))
    nearest = min(whole, key=lambda one: abs(one - rate))
    if abs(nearest - rate) <= error * rate:
        return nearest
    return rate.limit_denominator(1001)
