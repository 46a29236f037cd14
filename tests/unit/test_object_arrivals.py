"""An object that a watched bucket is said to have: taken as a listing would, and once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from intermission.backends.store.memory import MemoryStore
from intermission.composition.fleet import Fleet
from intermission.composition.locations import Location, ObjectLocation
from intermission.errors import IntermissionError, LedgerError, StoreRefused, StoreUnavailable
from intermission.model import Job
from intermission.services.folder_watch import PAUSES_S, FolderWatch
from intermission.settings import Settings
from intermission.settings.watch_rules import WatchedPlace
from intermission.testing.clock import FakeClock

PIPELINE = f"{Path(__file__).parents[1] / 'acceptance' / 'pipelines.py'}:letters"

WANTED = ("in/a.txt", "in/sub/b c+d.txt", "in/ü.txt")
UNWANTED = (
    "a.txt",  # beside the prefix
    "inn/a.txt",
    "in/.hidden.txt",
    "in/.folder/a.txt",
    "in/a.mp4.part",
    "in/notes.md",  # not included
    "in/empty.txt",
    "checkpoints/in/a.txt/ledger.txt",
    "shouted/in/a/whole.txt",
)


class World:
    """A bucket, a ledger, and a watch that is told of objects."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = MemoryStore()
        self.trouble: IntermissionError | None = None
        self.refused: IntermissionError | None = None
        self.tries = 0
        self.submitted: list[str] = []
        self.clock = FakeClock()
        self.fleet = Fleet(Settings(ledger=str(folder / "ledger.sqlite")))
        self.fleet.app.clock = self.clock
        self.watch = self.start("s3://media/in")
        monkeypatch.setattr("intermission.composition.locations._bucket", self._bucket)
        monkeypatch.setattr(self.fleet, "submit", self._submit)

    def start(self, place: str) -> FolderWatch:
        wanted = WatchedPlace(place=place, pipeline=PIPELINE, include=("*.txt", "*.part"))
        self.watch = FolderWatch(self.fleet, wanted)
        return self.watch

    def _bucket(self, *_: object) -> MemoryStore:
        if self.trouble is not None:
            self.tries += 1
            raise self.trouble
        return self.store

    def _submit(self, ref: str, place: Location, params: object, **how: Any) -> tuple[Any, bool]:
        if self.refused is not None:
            self.tries += 1
            raise self.refused
        self.submitted.append(str(place).removeprefix("s3://media/"))
        return object.__new__(Job), True

    def put(self, *keys: str) -> None:
        for key in keys:
            self.store.replace(key, b"" if "empty" in key else key.encode())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_what_arrives_is_taken_as_a_listing_would(world: World) -> None:
    world.put(*WANTED, *UNWANTED)
    assert world.watch.bucket == "media"
    for key in (*WANTED, *UNWANTED):
        is_done, outcome = world.watch.arrived(key)
        assert is_done
        assert (outcome is not None) == (key in WANTED)
    by_name, world.submitted = world.submitted, []
    world.start("s3://media/in")
    list(world.watch.look())
    assert sorted(by_name) == sorted(world.submitted) == sorted(WANTED)


def test_of_the_whole_bucket_its_own_outputs_are_left_alone(world: World) -> None:
    world.start("s3://media")
    world.put(*WANTED, *UNWANTED)
    for key in (*WANTED, *UNWANTED):
        assert world.watch.arrived(key)[0]
    assert set(world.submitted) == {*WANTED, "a.txt", "inn/a.txt"}


def test_one_object_may_be_watched_by_its_name(world: World) -> None:
    world.start("s3://media/live.bin")
    world.put("live.bin", "live.bin.txt")
    assert world.watch.arrived("live.bin")[1] is not None
    assert world.watch.arrived("live.bin.txt") == (True, None)


@pytest.mark.parametrize(
    "key", ["", "/", "in/", "in//a.txt", "in/../a.txt", "in/\ud800.txt", "in/\\"]
)
def test_what_cannot_be_an_object_here_needs_nothing(world: World, key: str) -> None:
    assert world.watch.arrived(key) == (True, None)


def test_an_object_that_is_gone_needs_nothing(world: World) -> None:
    assert world.watch.arrived("in/a.txt") == (True, None)


def test_told_twice_it_is_submitted_once_by_whoever_is_first(world: World) -> None:
    world.put("in/a.txt", "in/b.txt")
    assert world.watch.arrived("in/a.txt")[1] is not None
    assert world.watch.arrived("in/a.txt") == (True, None)
    list(world.watch.look())
    assert world.watch.arrived("in/b.txt") == (True, None)
    assert world.submitted == ["in/a.txt", "in/b.txt"]


def test_another_content_is_another_job(world: World) -> None:
    world.put("in/a.txt")
    world.watch.arrived("in/a.txt")
    list(world.watch.look())
    world.store.replace("in/a.txt", b"something else")
    assert world.watch.arrived("in/a.txt")[1] is not None
    assert list(world.watch.look()) == []
    assert len(world.submitted) == 2


def test_a_look_takes_the_version_that_was_told_of(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put("in/a.txt")
    world.watch.arrived("in/a.txt")
    stat = world.store.replace("in/a.txt", b"something else")
    monkeypatch.setattr(world.watch, "_list", lambda: None)  # it was listed before that
    world.refused = StoreUnavailable("away.")
    with pytest.raises(StoreUnavailable):
        world.watch.arrived("in/a.txt")
    world.refused = None
    ((place, _),) = world.watch.look()
    assert isinstance(place, ObjectLocation)
    assert place.version == stat.version


def test_a_file_that_the_other_thread_took_meanwhile_is_left_alone(world: World) -> None:
    world.put("in/a.txt", "in/b.txt")
    look = world.watch.look()
    assert next(look)[0].name == "a.txt"
    world.watch.arrived("in/b.txt")
    assert list(look) == []
    assert world.submitted == ["in/a.txt", "in/b.txt"]


@pytest.mark.parametrize("when", ["found", "submitted"])
def test_what_fails_is_told_once_and_its_message_stays(world: World, when: str) -> None:
    error = StoreRefused("denied.")
    world.put("in/a.txt")
    world.trouble, world.refused = (error, None) if when == "found" else (None, error)
    is_done, outcome = world.watch.arrived("in/a.txt")
    assert not is_done
    assert outcome is not None
    assert outcome[1] is error
    assert world.watch.arrived("in/a.txt") == (False, None)
    assert when == "found" or world.tries == 1, "it has a pause"
    world.clock.advance(PAUSES_S[0])
    assert world.watch.arrived("in/a.txt") == (False, None), "it was told"
    world.trouble = world.refused = None
    world.clock.advance(PAUSES_S[1])
    assert world.watch.arrived("in/a.txt")[0]
    assert world.submitted == ["in/a.txt"]


def test_an_outage_is_nobodys_failure(world: World) -> None:
    world.put("in/a.txt")
    for error in (StoreUnavailable("away."), LedgerError("away.")):
        world.refused = error
        with pytest.raises(type(error)):
            world.watch.arrived("in/a.txt")
    world.refused, world.trouble = None, StoreUnavailable("away.")
    with pytest.raises(StoreUnavailable):
        world.watch.arrived("in/a.txt")
    world.trouble = None
    assert world.watch.arrived("in/a.txt")[0], "there is no pause"
