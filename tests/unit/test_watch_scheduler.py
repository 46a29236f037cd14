"""When places are looked at, and what is said when one cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from intermission.composition.fleet import Fleet
from intermission.composition.locations import Location
from intermission.errors import IntermissionError, StoreUnavailable, UsageError
from intermission.services.cron import Cron
from intermission.services.folder_watch import FolderWatch, Outcome
from intermission.services.watch_scheduler import (
    AWAY_S,
    SETTLE_S,
    AtTimes,
    Every,
    Timing,
    Watch,
    server_watches,
    timing_of,
    watch_services,
    watches_of,
)
from intermission.settings import Settings
from intermission.settings.watch_rules import WatchedPlace
from intermission.testing.clock import START_MS, FakeClock

PIPELINE = f"{Path(__file__).parents[1] / 'acceptance' / 'pipelines.py'}:letters"
HOUR_S = 3600.0


@dataclass
class Time:
    """A clock from a moment on, and a stop that lets time pass until an end."""

    clock: FakeClock
    end_s: float
    waits: list[float] = field(default_factory=list[float])

    def is_set(self) -> bool:
        return self.clock.monotonic_s() >= self.end_s

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        # A wait of nothing would turn in place; whatever was due is done by then.
        self.clock.advance(max(timeout, 0.001))
        return self.is_set()

    def succeeded(self) -> None:
        pass


@dataclass
class FakeFolder:
    """Notes when it is looked at."""

    clock: FakeClock
    troubles: list[Exception] = field(default_factory=list[Exception])
    looks_ms: list[int] = field(default_factory=list[int])
    is_unsettled: bool = False
    place: str = "in"

    def look(self, is_stopped: object) -> Iterator[Outcome]:
        self.looks_ms.append(self.clock.now_ms())
        if self.troubles:
            raise self.troubles.pop(0)
        yield from ()

    @property
    def looks(self) -> list[str]:
        """As a clock on the wall in Greenwich shows it."""
        return [
            datetime.fromtimestamp(ms / 1000, UTC).strftime("%d. %H:%M") for ms in self.looks_ms
        ]


def tell(place: Location, became: str | IntermissionError) -> None:
    """The folders here have nothing to tell."""


class World:
    """A watch on a day in June, from some hour on."""

    def __init__(self, start: str = "00:00") -> None:
        self.clock = FakeClock()
        moment = datetime.fromisoformat(f"2025-06-16T{start}Z")
        self.clock.jump_wall(moment.timestamp() - START_MS / 1000)
        self.folder = FakeFolder(self.clock)
        self.errors: list[str] = []

    def watch(self, timing: Timing) -> Watch:
        return Watch(cast(FolderWatch, self.folder), timing)

    def run(self, watch: Watch, *, hours: float) -> Time:
        stop = Time(self.clock, self.clock.monotonic_s() + hours * HOUR_S)
        while not stop.is_set():
            try:
                watch.run(stop, tell)
            except IntermissionError as e:  # as a supervisor does
                self.errors.append(str(e))
                self.clock.advance(AWAY_S)
        return stop

    def nightly(self, expression: str = "0 2 * * *") -> Watch:
        return self.watch(AtTimes(Cron(expression, UTC), self.clock))


def test_every_so_often_beginning_at_once() -> None:
    world = World()
    world.run(world.watch(Every(600, world.clock)), hours=0.5)
    assert world.folder.looks == ["16. 00:00", "16. 00:10", "16. 00:20"]


def test_at_its_times_and_no_others() -> None:
    world = World("00:00")
    world.run(world.nightly(), hours=48)
    assert world.folder.looks == ["16. 02:00", "17. 02:00"]


def test_a_start_soon_after_the_time_looks_and_a_later_one_waits() -> None:
    soon, later = World("02:59"), World("03:01")
    for world in (soon, later):
        world.run(world.nightly(), hours=24)
    assert soon.folder.looks == ["16. 02:59", "17. 02:00"]
    assert later.folder.looks == ["17. 02:00"]


def test_several_missed_times_are_one_look() -> None:
    world = World("02:59")
    world.run(world.nightly("*/10 * * * *"), hours=0.4)
    assert world.folder.looks == ["16. 02:59", "16. 03:00", "16. 03:10", "16. 03:20"]


def test_a_machine_that_slept_through_the_time_waits_for_the_next() -> None:
    world = World("00:00")
    watch = world.nightly()
    world.run(watch, hours=1)
    world.clock.advance(8 * HOUR_S)
    world.run(watch, hours=24)
    assert world.folder.looks == ["17. 02:00"]


def test_a_clock_that_is_set_back_does_not_silence_it() -> None:
    world = World("00:00")
    watch = world.nightly()
    world.run(watch, hours=3)
    world.clock.jump_wall(-365 * 24 * HOUR_S)
    world.run(watch, hours=24)
    assert world.folder.looks == ["16. 02:00", "17. 02:00"]


def test_by_cron_a_folder_is_looked_at_twice_if_that_tells_more() -> None:
    world = World("01:59")
    world.folder.is_unsettled = True
    world.run(world.nightly(), hours=1)
    first_ms, second_ms = world.folder.looks_ms
    assert second_ms - first_ms == SETTLE_S * 1000


def test_a_place_that_is_away_is_looked_at_as_soon_as_the_supervisor_starts_it_again() -> None:
    world = World()
    world.folder.troubles = [StoreUnavailable("no answer.")] * 5
    world.run(world.watch(Every(600, world.clock)), hours=0.5)
    assert world.errors == ["no answer."] * 5
    pauses_ms = [
        b - a for a, b in zip(world.folder.looks_ms, world.folder.looks_ms[1:], strict=False)
    ]
    assert pauses_ms[:5] == [AWAY_S * 1000] * 5
    assert pauses_ms[5:] == [600_000] * 2


def test_a_folder_that_the_system_denies_is_an_error_that_names_it() -> None:
    world = World()
    world.folder.troubles = [PermissionError(13, "Permission denied")]
    world.run(world.watch(Every(600, world.clock)), hours=0.1)
    (said,) = world.errors
    assert "this user may not do that in in." in said


def test_a_look_that_is_an_hour_late_is_left_to_the_next_time() -> None:
    world = World("01:59")
    world.folder.troubles = [StoreUnavailable("no answer.")] * 10_000
    watch = world.nightly()
    world.run(watch, hours=20)
    assert world.folder.looks[0] == "16. 02:00"
    assert world.folder.looks[-1] == "16. 02:59"
    world.folder.troubles.clear()
    world.run(watch, hours=10)
    assert world.folder.looks[-1] == "17. 02:00"


def test_each_place_has_a_service_so_that_none_waits_for_another() -> None:
    """Of two watches of one place each has its own name: metrics have one line for a name."""
    clock = FakeClock()
    folders = [FakeFolder(clock, place=place) for place in ("in", "other", "in")]
    watches = [Watch(cast(FolderWatch, one), Every(60, clock)) for one in folders]
    services = watch_services(watches, tell)
    names = [service.name for service in services]
    assert names == ["watch of in", "watch of other", "watch of in (number 3)"]
    assert not any(service.is_essential for service in services)


@pytest.mark.parametrize(
    ("when", "problem"),
    [
        ({"every_s": 5.0, "cron": "0 2 * * *"}, "both"),
        ({"timezone": "Europe/Berlin"}, "time zone"),
        ({"cron": "0 2 * *"}, "4 fields"),
        ({"cron": "0 2 * * *", "timezone": "Mars/Base"}, "Mars/Base"),
    ],
)
def test_when_to_look_must_make_sense(when: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        timing_of(WatchedPlace(place="in", pipeline=PIPELINE, **when), FakeClock())


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"pipeline": "nobody-wrote-it"}, "nobody-wrote-it"),
        ({"params": {"colour": "red"}}, "colour"),
        ({"params": {"size": "large"}}, "size"),
        ({"cron": "at night"}, "at night"),
        ({"every_s": 5, "cron": "0 2 * * *"}, "both"),
    ],
)
def test_a_watch_that_cannot_work_is_named(
    tmp_path: Path, wrong: dict[str, Any], problem: str
) -> None:
    good = {"place": "in", "pipeline": PIPELINE, "params": {"size": 3}}
    settings = Settings(
        ledger=str(tmp_path / "ledger.sqlite"),
        watches=(WatchedPlace(**good), WatchedPlace(**{**good, **wrong})),
    )
    with pytest.raises(UsageError, match="watches, number 2") as caught:
        watches_of(Fleet(settings))
    assert problem in caught.value.message
    assert caught.value.remedy


def test_without_watches_nothing_is_started(tmp_path: Path) -> None:
    assert server_watches(Fleet(Settings(ledger=str(tmp_path / "ledger.sqlite")))) == []
    assert not (tmp_path / "ledger.sqlite").exists()
