"""The rate that players are told is the one that was meant, whatever happened to the video."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

import pytest

from intermission.pipelines.transcode.frame_rate import mean_of, rate_of

NTSC = [Fraction(n * 1000, 1001) for n in (15, 24, 30, 48, 60, 120)]
WHOLE = [Fraction(n) for n in (1, 10, 12, 24, 25, 30, 50, 60, 120)]
OTHER = [Fraction(25, 2), Fraction(15, 2)]


def stamps(fps: Fraction, clock_hz: int, count: int = 240) -> list[int]:
    """Of a regular video, as a file with this clock keeps them; at 90,000 ticks a second."""
    return [round(n / fps * clock_hz) * 90_000 // clock_hz for n in range(count)]


@pytest.mark.parametrize("clock_hz", [90_000, 10_000, 1000])
@pytest.mark.parametrize("fps", [*NTSC, *WHOLE, *OTHER], ids=lambda fps: f"{float(fps):.3f}")
def test_a_regular_video(fps: Fraction, clock_hz: int) -> None:
    shown = stamps(fps, clock_hz)
    end = shown[-1] + shown[1]
    assert rate_of(shown, end, 90_000) == fps
    assert rate_of(shown, shown[-1] + 90_000, 90_000) == fps, "the last frame stays"


@pytest.mark.parametrize("clock_hz", [90_000, 1000])
@pytest.mark.parametrize("fps", [NTSC[1], NTSC[2], WHOLE[4]], ids=lambda fps: f"{float(fps):.3f}")
def test_a_video_that_was_cut(fps: Fraction, clock_hz: int) -> None:
    shown = stamps(fps, clock_hz)
    late = [0, *(at + 7_000 for at in shown[1:])]
    assert rate_of(late, late[-1] + 1, 90_000) == fps, "it begins late and ends at once"
    hole = [*shown[:100], *shown[130:]]
    assert rate_of(hole, hole[-1] + shown[1], 90_000) == fps, "its middle is missing"
    dropped = [at for n, at in enumerate(shown) if n % 50]
    assert rate_of(dropped, dropped[-1] + shown[1], 90_000) == fps, "some video are missing"


@pytest.mark.parametrize("fps", [NTSC[1], WHOLE[3], NTSC[2], WHOLE[5]])
def test_the_beginning_of_a_video_is_enough(fps: Fraction) -> None:
    shown = stamps(fps, 90_000, count=12)
    assert rate_of(shown, shown[-1] + 90_000, 90_000) == fps


def test_a_rate_that_is_none_of_the_usual_stays() -> None:
    shown = [n * 3002 for n in range(2000)]  # between 29.97 and 30
    assert f"{float(rate_of(shown, 2000 * 3002, 90_000)):.3f}" == "29.980"


def at_distances(*ms: int) -> list[int]:
    """Frames shown at these distances, in milliseconds; at 90,000 ticks a second."""
    return [0, *accumulate(step * 90 for step in ms)]


@pytest.mark.parametrize(
    ("ms", "fastest"),
    [
        ([20, 40, 80] * 20, 50),
        ([50, 33] * 40, 30),
        ([1000, 4000], 1),
        ([40] * 500 + [20] * 20, 50),
        ([40] * 20 + [20] * 500, 50),
        ([17, 17, 16] * 20 + [50] * 50, 60),
        ([40] * 100 + [7] + [40] * 100, 25),
    ],
    ids=["mixed", "alternating", "slides", "at last", "at first", "milliseconds", "joined"],
)
def test_the_maximum_of_one_that_varies(ms: list[int], fastest: Fraction) -> None:
    shown = at_distances(*ms)
    assert float(rate_of(shown, shown[-1] + 1_800, 90_000)) == pytest.approx(fastest, rel=0.002)


def test_the_average_is_the_rate_of_a_regular_video() -> None:
    varying = at_distances(*[20, 40, 80] * 20)
    assert mean_of(varying, varying[-1] + 1_800, 90_000) == Fraction(61 * 90_000, 253_800)
    cut = at_distances(*[40] * 100, 5000, *[40] * 100)
    assert mean_of(cut, cut[-1] + 90_000, 90_000) == 25


def test_a_single_frame_is_shown_as_long_as_it_is() -> None:
    assert rate_of([0], 3_600, 90_000) == 25
    assert rate_of([0], 0, 90_000) > 0
