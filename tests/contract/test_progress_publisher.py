"""The event log over Redis: one process publishes, each event once, and another continues."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis

from intermission.backends import progress_publisher
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.progress_publisher import CHANNEL, ProgressPublisher, publishing
from intermission.composition.event_log import last_event
from intermission.errors import LedgerError
from intermission.ports.ledger import Ledger
from intermission.testing.jobs import completion, line_job, submit
from servers.valkey import ValkeyServer

DEADLINE_S = 60.0


class World:
    """A ledger, those who may publish its log, and who listens."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.path = path
        self.fleet = os.urandom(4).hex()
        self.ledger = self.open()
        self.job = submit(self.ledger, line_job())
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self.listener = self.client.pubsub(ignore_subscribe_messages=True)
        self.listener.psubscribe(f"{CHANNEL}*")
        self.channel = CHANNEL + self.job.key
        until(lambda: self.client.pubsub_numpat())
        self.listener.get_message(timeout=1)  # that of the subscription
        self.published: list[int] = []

    def open(self) -> Ledger:
        return SqliteLedger(self.path)

    def publisher(self, open_ledger: Callable[[], Ledger] | None = None) -> ProgressPublisher:
        return ProgressPublisher(
            self.url,
            self.fleet,
            open_ledger or self.open,
            newest=last_event,
            describe=lambda event: json.dumps(event.seq),
        )

    def is_published(self) -> bool:
        """Whether somebody has the lock and has looked at the log."""
        return self.client.exists(f"{progress_publisher.KEYS}{self.fleet}:position") == 1

    def work(self) -> list[int]:
        """Change something: the numbers of the events."""
        before = last_event(self.ledger)
        (lease,) = self.ledger.claim("w", 1, lease_ttl_s=60)
        self.ledger.complete([completion(self.ledger, self.job, lease)])
        return [event.seq for event in self.ledger.events(before, limit=100)]

    def heard(self) -> list[int]:
        while (message := self.listener.get_message(timeout=0)) is not None:
            if message["channel"] == self.channel:
                self.published.append(json.loads(message["data"]))
        return self.published

    def close(self) -> None:
        self.listener.close()
        self.client.close()
        self.ledger.close()


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.01)


@pytest.fixture
def world(valkey: str, tmp_path: Path) -> Iterator[World]:
    with closing(World(valkey, tmp_path / "ledger.sqlite")) as world:
        yield world


def test_of_several_one_publishes_every_event_once(world: World) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(publishing(world.publisher()))
        until(world.is_published)
        expected = world.work() + world.work()
        until(lambda: len(world.heard()) >= len(expected))
    assert world.heard() == expected, "each once and in order, also after their end"


def test_another_continues_after_the_last_event_that_was_published(world: World) -> None:
    with publishing(world.publisher()):
        until(world.is_published)
        expected = world.work()
        until(lambda: world.heard() == expected)
    expected += world.work()  # nobody publishes
    with publishing(world.publisher()):
        until(lambda: len(world.heard()) >= len(expected))
    assert world.heard() == expected


def test_what_was_logged_before_the_first_publisher_is_not_published(world: World) -> None:
    world.work()
    with publishing(world.publisher()):
        until(world.is_published)
        expected = world.work()
        until(lambda: world.heard() == expected)


def test_what_is_logged_just_before_the_end_is_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_publisher, "EVERY_S", 3600.0)
    with publishing(world.publisher()):
        until(world.is_published)
        expected = world.work()
    until(lambda: world.heard() == expected)


def test_a_publisher_that_lost_the_lock_publishes_nothing_more(world: World) -> None:
    """As one that was stopped for a while: another has taken its place."""
    with publishing(world.publisher()):
        until(world.is_published)
        world.client.set(f"{progress_publisher.KEYS}{world.fleet}:lock", "another")
        world.work()
    assert world.heard() == []


def test_a_log_that_was_begun_anew_is_published(world: World) -> None:
    world.client.set(f"{progress_publisher.KEYS}{world.fleet}:position", 10**9)
    with publishing(world.publisher()):
        lock = f"{progress_publisher.KEYS}{world.fleet}:position"
        until(lambda: world.client.get(lock) != str(10**9))
        expected = world.work()
        until(lambda: world.heard() == expected)


@pytest.mark.parametrize("away", ["redis", "ledger"])
def test_an_outage_is_logged_once_and_publishing_continues(
    valkey_server: Callable[[], ValkeyServer],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    away: str,
) -> None:
    server = valkey_server()
    is_away = threading.Event()
    is_away.set()

    with closing(World(server.url, tmp_path / "ledger.sqlite")) as world:

        def open_ledger() -> Ledger:
            if is_away.is_set() and away == "ledger":
                raise LedgerError("gone.")
            return world.open()

        if away == "redis":
            server.kill()
        caplog.set_level(logging.INFO)
        with publishing(world.publisher(open_ledger), pause_max_s=0.1):
            until(lambda: "publishing progress to Redis failed" in caplog.text)
            is_away.clear()
            if away == "redis":
                server.start()
            until(lambda: "publishing progress to Redis works again" in caplog.text)
        assert caplog.text.count("publishing progress to Redis failed") == 1
