"""Where pieces of audio go: late starts, gaps, overlaps and stamps that mean nothing."""

from __future__ import annotations

from intermission.media.timeline import FOLLOWS, TICKS_PER_S, Place, Timeline

SECOND = TICKS_PER_S
TENTH = SECOND // 10


def timeline() -> Timeline:
    return Timeline(horizon=60 * SECOND)


def test_pieces_that_follow_each_other_are_joined() -> None:
    line = timeline()
    assert [line.place(n * TENTH, TENTH) for n in range(5)] == [FOLLOWS] * 5


def test_a_piece_without_a_stamp_follows_the_one_before() -> None:
    line = timeline()
    line.place(0, TENTH)
    assert line.place(None, TENTH) == FOLLOWS
    assert line.place(2 * TENTH, TENTH) == FOLLOWS


def test_a_late_start_is_silence_to_the_sample() -> None:
    assert timeline().place(1, TENTH) == Place(silence_until=1)


def test_what_lies_before_the_start_is_dropped() -> None:
    line = timeline()
    assert line.place(-TENTH // 5, TENTH) == Place(drop=TENTH // 5)
    assert line.place(TENTH * 4 // 5, TENTH) == FOLLOWS


def test_jitter_is_no_gap_and_does_not_add_up() -> None:
    line = timeline()
    line.place(0, TENTH)
    assert line.place(TENTH * 19 // 10, TENTH) == FOLLOWS
    late = TENTH * 31 // 10
    assert line.place(late, TENTH) == Place(silence_until=late)


def test_a_gap_becomes_silence() -> None:
    line = timeline()
    line.place(0, TENTH)
    assert line.place(5 * SECOND, TENTH) == Place(silence_until=5 * SECOND)
    assert line.place(51 * TENTH, TENTH) == FOLLOWS


def test_audio_stored_twice_is_taken_once() -> None:
    line = timeline()
    line.place(0, SECOND)
    assert line.place(SECOND // 2, SECOND) == Place(drop=SECOND // 2)
    assert line.place(SECOND * 3 // 2, SECOND) == FOLLOWS


def test_a_clock_that_starts_again_only_moves() -> None:
    line = timeline()
    line.place(30 * SECOND, TENTH)
    assert line.place(0, TENTH) == FOLLOWS
    assert line.place(TENTH, TENTH) == FOLLOWS


def test_a_stamp_beyond_the_horizon_makes_no_hours_of_silence() -> None:
    line = timeline()
    line.place(0, TENTH)
    assert line.place(83_513 * SECOND, TENTH) == FOLLOWS
    assert line.place(83_513 * SECOND + TENTH, TENTH) == FOLLOWS
    assert line.place(3 * TENTH, TENTH) == FOLLOWS, "the clock is right again"
