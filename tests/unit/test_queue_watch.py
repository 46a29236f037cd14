"""Messages about watched buckets: what is submitted, what is deleted, and when it gives way."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from intermission.backends.events.sqs import BATCH_MAX, WAIT_S, Message, SqsQueue
from intermission.composition.fleet import Fleet
from intermission.composition.locations import Location, ObjectLocation
from intermission.errors import (
    IntermissionError,
    LedgerError,
    QueueError,
    SourceError,
    StoreUnavailable,
    UsageError,
)
from intermission.services.folder_watch import FolderWatch, Outcome
from intermission.services.queue_watch import TURN_S, QueueWatch, queue_of
from intermission.services.watch_scheduler import (
    BESIDE_QUEUE_S,
    Every,
    Watch,
    timing_of,
    watch_services,
    watches_of,
)
from intermission.settings import Settings
from intermission.settings.watch_rules import WatchedPlace
from intermission.testing.clock import FakeClock

PIPELINE = f"{Path(__file__).parents[1] / 'acceptance' / 'pipelines.py'}:letters"
URL = "https://sqs.eu-central-1.amazonaws.com/111122223333/media"
JOB = "a job"


def told_of(*keys: str, bucket: str = "media") -> str:
    records = [
        {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": bucket}, "object": {"key": k}}}
        for k in keys
    ]
    return json.dumps({"Records": records})


@dataclass
class FakeQueue:
    """Gives out what lies in it, again and again, until it is deleted."""

    bodies: dict[str, str] = field(default_factory=dict[str, str])
    troubles: list[IntermissionError] = field(default_factory=list[IntermissionError])
    waits_s: list[int] = field(default_factory=list[int])
    deleted: list[list[str]] = field(default_factory=list[list[str]])
    url: str = URL
    is_closed: bool = False

    def receive(self, wait_s: int = WAIT_S) -> list[Message]:
        self.waits_s.append(wait_s)
        if self.troubles:
            raise self.troubles.pop(0)
        found = list(self.bodies.items())[:BATCH_MAX]
        return [Message(id, f"handle of {id}", body) for id, body in found]

    def delete(self, messages: Sequence[Message]) -> None:
        self.deleted.append([message.id for message in messages])
        for message in messages:
            assert message.handle == f"handle of {message.id}"
            del self.bodies[message.id]

    def close(self) -> None:
        self.is_closed = True


@dataclass
class FakeFolder:
    """Notes what arrived; an answer may be an error to raise."""

    answers: dict[str, tuple[bool, Any] | IntermissionError] = field(default_factory=dict)
    arrivals: list[str] = field(default_factory=list[str])
    bucket: str = "media"
    place: str = "s3://media/in/"

    def arrived(self, key: str) -> tuple[bool, Outcome | None]:
        self.arrivals.append(key)
        answer = self.answers.get(key, (True, None))
        if isinstance(answer, IntermissionError):
            raise answer
        is_done, outcome = answer
        return is_done, None if outcome is None else (ObjectLocation("s3://media", key), outcome)


class World:
    """A queue that a watch listens to for some turns."""

    def __init__(self, *folders: FakeFolder) -> None:
        self.queue = FakeQueue()
        self.folders = list(folders) or [FakeFolder()]
        self.told: list[str] = []
        self.pauses_s: list[float] = []
        self.turns = 0
        watched = [cast(FolderWatch, folder) for folder in self.folders]
        self.watch = QueueWatch(cast(SqsQueue, self.queue), watched, self.tell)

    def run(self, turns: int = 1) -> None:
        self.turns = turns
        self.watch.run(self)

    def is_set(self) -> bool:
        return self.turns <= 0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses_s.append(timeout)
        self.turns -= 1
        return self.is_set()

    def succeeded(self) -> None:
        pass

    def tell(self, place: Location, became: str | IntermissionError) -> None:
        self.told.append(f"{place}: {became}")


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_told_of_is_submitted_and_then_deleted(world: World) -> None:
    world.folders[0].answers = {"in/a b": (True, JOB)}
    world.queue.bodies = {"1": told_of("in/a+b"), "2": told_of("in/c", "in/d")}
    world.run()
    assert world.folders[0].arrivals == ["in/a b", "in/c", "in/d"]
    assert world.queue.deleted == [["1", "2"]]
    assert world.told == ["s3://media/in/a b: a job"]
    assert world.queue.is_closed


def test_a_message_stays_until_all_its_objects_have_their_jobs(world: World) -> None:
    answers = world.folders[0].answers
    answers |= {"in/a": (False, SourceError("no.")), "in/b": (True, JOB)}
    world.queue.bodies = {"1": told_of("in/a", "in/b")}
    world.run()
    assert world.queue.deleted == []
    assert world.told == ["s3://media/in/a: no.", "s3://media/in/b: a job"]
    answers["in/a"] = (True, None)
    world.run()
    assert world.queue.deleted == [["1"]]


def test_where_nothing_can_be_done_it_does_not_turn_in_place(world: World) -> None:
    world.queue.bodies = {"1": "hello"}
    world.run(3)
    assert world.pauses_s == [TURN_S] * 3
    world.queue.bodies["2"] = told_of("in/a")
    world.run()
    assert world.pauses_s[3:] == [0.0]


def test_what_cannot_be_read_stays_and_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.queue.bodies = {"1": "hello", "2": told_of("in/a")}
    with caplog.at_level(logging.WARNING):
        world.run(5)
    assert list(world.queue.bodies) == ["1"]
    (logged,) = caplog.messages
    assert logged == f"{URL}: a message is left there, for it is not JSON: 'hello'"
    assert world.told == []


def test_a_bucket_that_nobody_watches_is_left_alone_and_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.queue.bodies = {"1": told_of("in/a", bucket="b"), "2": told_of("in/c", bucket="b")}
    with caplog.at_level(logging.WARNING):
        world.run(3)
    assert world.queue.deleted == []
    assert world.folders[0].arrivals == []
    assert len(caplog.messages) == 1
    assert "'b'" in caplog.messages[0]


@pytest.mark.parametrize("undone", [0, 2])
def test_watches_that_share_a_queue_are_all_told(undone: int) -> None:
    world = World(FakeFolder(), FakeFolder(bucket="other"), FakeFolder())
    world.folders[undone].answers = {"in/a": (False, None)}
    world.queue.bodies = {"1": told_of("in/a"), "2": told_of("in/b", bucket="other")}
    world.run()
    assert [folder.arrivals for folder in world.folders] == [["in/a"], ["in/b"], ["in/a"]]
    assert world.queue.deleted == [["2"]], "one of them is not done with the first"


@pytest.mark.parametrize("trouble", [LedgerError("away."), StoreUnavailable("away.")])
def test_what_is_in_the_ledger_is_deleted_though_it_fails_at_the_next(
    world: World, trouble: IntermissionError
) -> None:
    world.folders[0].answers = {"in/b": trouble}
    world.queue.bodies = {str(n): told_of(f"in/{key}") for n, key in enumerate("abc")}
    with pytest.raises(type(trouble)):
        world.run()
    assert world.queue.deleted == [["0"]]
    assert world.folders[0].arrivals == ["in/a", "in/b"]


def test_after_an_outage_it_is_known_at_once_whether_the_queue_answers(world: World) -> None:
    """And not when a message comes."""
    world.run(2)
    world.queue.troubles = [QueueError("gone.", remedy="Create it.")]
    with pytest.raises(QueueError, match="Create it"):
        world.run(1)
    world.run(2)
    assert world.queue.waits_s == [0, WAIT_S, 0, 0, WAIT_S]


def test_once_stopped_it_takes_nothing_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.queue.bodies = {"1": told_of("in/a"), "2": told_of("in/b")}

    def stop(key: str) -> tuple[bool, None]:
        world.turns = 0
        return True, None

    monkeypatch.setattr(world.folders[0], "arrived", stop)
    world.run()
    assert world.queue.deleted == [["1"]], "what is submitted is still deleted"


def test_watches_of_one_queue_share_its_messages() -> None:
    timing = Every(1.0, FakeClock())
    names = [("a", URL), ("b", f"{URL}-2"), ("c", URL), ("d", None)]
    watches = [
        Watch(
            cast(FolderWatch, FakeFolder(bucket=bucket)), timing, url and queue_of(url, "s3://b/")
        )
        for bucket, url in names
    ]
    services = watch_services(watches, World().tell)
    assert [service.name for service in services][len(watches) :] == [
        f"queue {URL}",
        f"queue {URL}-2",
    ]


def test_beside_a_queue_a_place_is_looked_at_seldom(tmp_path: Path) -> None:
    watched: dict[str, Any] = {"place": "s3://media/in/", "pipeline": PIPELINE, "queue": URL}
    settings = Settings(
        ledger=str(tmp_path / "ledger.sqlite"),
        watches=(WatchedPlace(**watched), WatchedPlace(**watched, every_s=7)),
    )
    usual, own = watches_of(Fleet(settings))
    for watch, expected_s in ((usual, BESIDE_QUEUE_S), (own, 7.0)):
        assert watch.queue is not None
        assert watch.queue.url == URL
        watch.timing.looked(0)
        assert expected_s - 1 < watch.timing.wait_s() <= expected_s


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"place": "in"}, "not in S3"),
        ({"place": "gs://media/in"}, "not in S3"),
        ({"queue": "media"}, "URL of an SQS queue"),
        ({"cron": "0 2 * * *"}, "both a queue"),
    ],
)
def test_a_queue_that_cannot_be_meant_is_refused(
    tmp_path: Path, wrong: dict[str, Any], problem: str
) -> None:
    watched = {"place": "s3://media/in/", "pipeline": PIPELINE, "queue": URL, **wrong}
    settings = Settings(ledger=str(tmp_path / "l.sqlite"), watches=(WatchedPlace(**watched),))
    with pytest.raises(UsageError, match=f"watches, number 1: .*{problem}") as caught:
        watches_of(Fleet(settings))
    assert caught.value.remedy


def test_without_a_queue_the_time_between_looks_is_as_ever() -> None:
    clock = FakeClock()
    timing = timing_of(WatchedPlace(place="in", pipeline=PIPELINE), clock)
    timing.looked(0)
    assert timing.wait_s() == 10.0
