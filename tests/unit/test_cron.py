"""Cron expressions: which times they name, through clock changes, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from intermission.errors import UsageError
from intermission.services.cron import Cron, zone_of

BERLIN = "Europe/Berlin"


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def times(expression: str, after: str, count: int, zone: str = BERLIN) -> list[str]:
    cron, moment_ms, found = Cron(expression, zone_of(zone)), ms(after), list[str]()
    for _ in range(count):
        moment_ms = cron.after(moment_ms)
        moment = datetime.fromtimestamp(moment_ms / 1000, UTC).astimezone(zone_of(zone))
        found.append(moment.isoformat(timespec="minutes"))
    return found


def test_a_time_of_the_day_follows_the_clock_on_the_wall() -> None:
    assert times("0 2 * * *", "2026-07-01T02:00+02:00", 2) == [
        "2026-07-02T02:00+02:00",
        "2026-07-03T02:00+02:00",
    ]
    assert times("0 2 * * *", "2026-01-01T00:00+00:00", 1) == ["2026-01-01T02:00+01:00"]


def test_a_time_that_does_not_exist_comes_once_after_the_gap() -> None:
    assert times("30 2 * * *", "2026-03-28T12:00+01:00", 2) == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:30+02:00",
    ]
    assert times("0,30 2 * * *", "2026-03-28T12:00+01:00", 2) == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:00+02:00",
    ]


@pytest.mark.parametrize(
    "started",
    [
        "2026-10-24T12:00+02:00",
        "2026-10-25T02:10+02:00",  # in the hour that will come again
    ],
)
def test_a_time_that_exists_twice_comes_once(started: str) -> None:
    assert times("30 2 * * *", started, 2) == ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]


def test_started_in_the_second_of_two_equal_hours_the_first_is_over() -> None:
    assert times("30 2 * * *", "2026-10-25T02:10+01:00", 1) == ["2026-10-26T02:30+01:00"]


def test_every_half_hour_is_every_half_hour() -> None:
    assert times("*/30 * * * *", "2026-10-25T02:10+02:00", 4) == [
        "2026-10-25T02:30+02:00",
        "2026-10-25T02:00+01:00",
        "2026-10-25T02:30+01:00",
        "2026-10-25T03:00+01:00",
    ]


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("0 2 * *", "4 fields instead of 5"),
        ("* * * * * *", "6 fields instead of 5"),
        ("", "0 fields"),
        ("61 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("0 2 * * funday", "day-of-week"),
        ("0 0 30 2 *", "day-of-month"),
        ("*/0 * * * *", "minute"),
    ],
)
def test_a_wrong_expression_is_refused_in_a_sentence(expression: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        Cron(expression, UTC)
    assert repr(expression) in caught.value.message
    assert problem in caught.value.message
    assert "'0 2 * * *'" in caught.value.remedy


@pytest.mark.parametrize("name", ["Europe/Nowhere", "Europe", "../etc/passwd", "/etc/localtime"])
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="there is no time zone"):
        zone_of(name)


def test_without_a_name_it_is_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    summer = datetime(2026, 7, 1, 12, tzinfo=UTC)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    assert summer.astimezone(zone_of(None)).isoformat() == "2026-07-01T17:30:00+05:30"
    monkeypatch.setenv("TZ", "")
    assert summer.astimezone(zone_of(None)) == summer
    monkeypatch.delenv("TZ")
    assert summer.astimezone(zone_of(None)).utcoffset() == summer.astimezone().utcoffset()
    monkeypatch.setenv("TZ", "CET-1CEST")
    with pytest.raises(UsageError, match="CET-1CEST"):
        zone_of(None)
