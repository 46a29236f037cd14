"""A watched place: what is taken, when, how often, and what becomes of what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.composition.fleet import Fleet
from intermission.composition.locations import Location
from intermission.errors import (
    IntermissionError,
    LedgerError,
    ParameterError,
    SourceError,
    StoreError,
)
from intermission.model import JobState
from intermission.services.folder_watch import PAUSES_S, FolderWatch
from intermission.settings import Settings
from intermission.settings.parameter_overrides import Override
from intermission.settings.watch_rules import WatchedPlace
from intermission.testing.clock import FakeClock

PIPELINE = f"{Path(__file__).parents[1] / 'acceptance' / 'pipelines.py'}:letters"


LOUD = Override(pipeline="letters", sources=("loud-*",), params={"mark": "!!"})


class World:
    """A folder, a ledger, and watches that come and go. Some files are to be louder."""

    def __init__(self, folder: Path) -> None:
        self.tried: list[str] = []
        self.folder = folder / "in"
        self.folder.mkdir()
        self.clock = FakeClock()
        self.fleet = Fleet(Settings(ledger=str(folder / "ledger.sqlite"), overrides=(LOUD,)))
        self.fleet.app.clock = self.clock
        self.watch = self.start()

    def start(self, **params: Any) -> FolderWatch:
        wanted = WatchedPlace(place=str(self.folder), pipeline=PIPELINE, params=params)
        self.watch = FolderWatch(self.fleet, wanted)
        return self.watch

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def look(self) -> dict[str, str | IntermissionError]:
        return {place.name: outcome for place, outcome in self.watch.look()}

    def taken(self) -> list[str]:
        return list(self.look())

    def states(self) -> list[JobState]:
        return [row.state for row in self.fleet.ledger.jobs()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


Submit = Callable[..., tuple[str, bool]]


@pytest.fixture
def refusing(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, IntermissionError]:
    """By name, why a file cannot be submitted."""
    refused: dict[str, IntermissionError] = {}
    submit: Submit = world.fleet.submit

    def try_to(ref: str, place: Location, *args: Any, **how: Any) -> tuple[str, bool]:
        world.tried.append(place.name)
        if place.name in refused:
            raise refused[place.name]
        return submit(ref, place, *args, **how)

    monkeypatch.setattr(world.fleet, "submit", try_to)
    return refused


def test_a_file_is_taken_when_nothing_changed_between_two_looks(world: World) -> None:
    world.write("a.txt", "ab")
    assert world.taken() == []
    assert world.watch.is_unsettled
    world.write("a.txt", "abcd")
    assert world.taken() == []
    assert world.taken() == ["a.txt"]
    assert not world.watch.is_unsettled
    assert world.taken() == []
    world.write("a.txt", "efgh")
    assert [world.taken(), world.taken()] == [[], ["a.txt"]]
    assert len(world.states()) == 2


def test_what_is_empty_or_being_downloaded_is_left_alone(world: World) -> None:
    for name, text in (("a.txt", ""), ("b.mp4.part", "ab"), ("c.txt~", "ab"), (".d.txt", "ab")):
        world.write(name, text)
    assert [world.taken(), world.taken()] == [[], []]


def test_an_empty_place_is_nothing_unusual_and_a_missing_one_is(world: World) -> None:
    assert world.taken() == []
    world.folder.rmdir()
    with pytest.raises(SourceError, match="does not exist"):
        world.taken()
    world.folder.mkdir()
    assert world.taken() == []


def test_started_again_it_leaves_alone_what_has_parameters_of_its_own(world: World) -> None:
    world.write("loud-1.txt", "ab")
    jobs = [world.look(), world.look()][1]
    (job,) = jobs.values()
    assert isinstance(job, str)
    assert '"mark":"!!"' in world.fleet.ledger.jobs(job)[0].job.params
    world.start()
    assert [world.taken(), world.taken()] == [[], []]


def test_started_again_it_leaves_alone_what_has_a_job(world: World) -> None:
    world.write("a.txt", "ab")
    world.taken()
    job = world.look()["a.txt"]
    assert isinstance(job, str)
    world.fleet.ledger.cancel(job, reason="a person said so")
    world.start()
    assert [world.taken(), world.taken()] == [[], []]
    assert world.states() == [JobState.CANCELLED]


def test_started_with_other_parameters_it_submits_other_jobs(world: World) -> None:
    world.write("a.txt", "ab")
    world.taken()
    assert world.taken() == ["a.txt"]
    world.start(size=1)
    assert [world.taken(), world.taken()] == [[], ["a.txt"]]
    assert len(world.states()) == 2


def test_a_ledger_of_any_length_is_never_read_as_a_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    jobs = SqliteLedger.jobs

    def ask(self: SqliteLedger, key_prefix: str = "", **how: Any) -> Any:
        asked.append(key_prefix)
        return jobs(self, key_prefix, **how)

    monkeypatch.setattr(SqliteLedger, "jobs", ask)
    world.write("a.txt", "ab")
    world.taken()
    assert asked == []
    assert world.taken() == ["a.txt"]
    assert asked
    assert all(len(key) == 40 for key in asked)
    asked.clear()
    world.taken()
    assert asked == [], "nothing is asked about what is known"


def test_a_file_is_hashed_once_however_often_it_is_watched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intermission.backends.source_files.STAMP_SETTLES_NS", 0)
    world.write("a.txt", "ab")
    world.taken()
    assert world.taken() == ["a.txt"]
    monkeypatch.setattr("intermission.backends.source_files.content_hash", lambda _: 1 / 0)
    world.start()
    assert [world.taken(), world.taken()] == [[], []]


def test_what_fails_is_told_once_and_tried_again_after_growing_pauses(
    world: World, refusing: dict[str, IntermissionError]
) -> None:
    refusing["a.txt"] = StoreError("the disk is full.")
    world.write("a.txt", "ab")
    world.write("b.txt", "cd")
    world.taken()
    first = world.look()
    assert first["a.txt"] is refusing["a.txt"]
    assert isinstance(first["b.txt"], str), "it stops nobody else"
    for pause_s in (*PAUSES_S, PAUSES_S[-1]):
        world.tried.clear()
        world.clock.advance(pause_s - 1)
        assert world.taken() == []
        assert world.tried == []
        world.clock.advance(1)
        assert world.taken() == [], "it was told"
        assert world.tried == ["a.txt"]
    del refusing["a.txt"]
    world.clock.advance(PAUSES_S[-1])
    assert world.taken() == ["a.txt"]


def test_another_version_of_what_failed_is_tried_and_told_anew(
    world: World, refusing: dict[str, IntermissionError]
) -> None:
    refusing["a.txt"] = StoreError("the disk is full.")
    world.write("a.txt", "ab")
    world.taken()
    assert world.taken() == ["a.txt"]
    world.write("a.txt", "abcd")
    assert [world.taken(), world.taken()] == [[], ["a.txt"]]


def test_a_ledger_that_is_away_breaks_the_look_off_and_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.txt", "ab")
    world.taken()
    with monkeypatch.context() as patch:
        patch.setattr(world.fleet, "has_job", lambda _: _raise(LedgerError("away.")))
        with pytest.raises(LedgerError):
            world.taken()
    assert world.taken() == ["a.txt"]


def test_a_file_at_which_the_ledger_fails_does_not_keep_the_others_waiting(
    world: World, refusing: dict[str, IntermissionError]
) -> None:
    refusing["a.txt"] = LedgerError("too much.")
    world.write("a.txt", "ab")
    world.write("b.txt", "cd")
    world.taken()
    with pytest.raises(LedgerError):
        world.taken()
    for expected in (["b.txt"], []):
        look, found = world.watch.look(), list[str]()
        with pytest.raises(LedgerError):
            found.extend(place.name for place, _ in look)
        assert found == expected
    del refusing["a.txt"]
    assert world.taken() == ["a.txt"], "an outage is nobody's failure: there is no pause"


def test_a_file_that_changes_while_others_are_taken_waits_for_the_next_look(world: World) -> None:
    world.write("a.txt", "ab")
    world.write("b.txt", "cd")
    world.taken()
    look = world.watch.look()
    assert next(look)[0].name == "a.txt"
    world.write("b.txt", "cdef")
    assert list(look) == []
    assert [world.taken(), world.taken()] == [[], ["b.txt"]]


def test_a_look_ends_when_it_is_stopped(world: World) -> None:
    for name in "abc":
        world.write(name, name * 2)
    world.taken()
    found: list[Location] = []
    for place, _ in world.watch.look(lambda: bool(found)):
        found.append(place)
    assert len(found) == 1


def test_a_wrong_parameter_is_refused_before_anything_is_watched(world: World) -> None:
    with pytest.raises(ParameterError, match="colour"):
        world.start(colour="red")


def _raise(error: Exception) -> Any:
    raise error
