"""Delivering: in order, after every trouble, and from a cursor that is never ahead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.store.memory import MemoryStore
from intermission.composition.fleet import Fleet
from intermission.composition.uploads import Uploads
from intermission.errors import LedgerError, StoreError, UsageError
from intermission.model import Failure, Reason, identity
from intermission.ports.ledger import Ledger
from intermission.services.alerting import (
    GIVE_UP_MS,
    LOOK_EVERY_S,
    TRIES_MIN,
    Cursor,
    Follower,
    alert_services,
    hooks_of,
)
from intermission.services.alerts import KINDS, Situation
from intermission.services.webhook import Answer, Hook
from intermission.settings import Settings
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import line_job, submit

OK = Answer(200, "")
DOWN = Answer(None, "nobody is there")


@dataclass
class FakeStop:
    """Waiting lets time pass on a fake clock; it is set when it was waited for long enough."""

    clock: FakeClock
    for_s: float = 10 * 24 * 3600
    waits: list[float] = field(default_factory=list[float])

    def is_set(self) -> bool:
        return sum(self.waits) >= self.for_s

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0)
        self.clock.advance(timeout or 0)
        return self.is_set()

    def succeeded(self) -> None:
        pass


@dataclass
class FakeHook:
    """Takes everything, unless `answers` says otherwise for the next tries."""

    answers: list[Answer] = field(default_factory=list[Answer])
    tried: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    got: list[str] = field(default_factory=list[str])
    name: str = "https://hooks.example"
    always: Answer | None = None

    def send(self, id: str, body: bytes) -> Answer:
        self.tried.append((id, json.loads(body)))
        answer = self.always or (self.answers.pop(0) if self.answers else OK)
        if answer.delivered:
            self.got.append(id)
        return answer


class World:
    """A ledger in which jobs fail, and followers that come and go."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.path = folder / "ledger.sqlite"
        self.ledger = self.open()
        self.store = MemoryStore()
        self.hook = FakeHook()
        self.stop = FakeStop(self.clock)

    def open(self) -> Ledger:
        return SqliteLedger(self.path, clock=self.clock)

    def follower(self, **options: Any) -> Follower:
        hook, cursor = cast(Hook, self.hook), Cursor(self.store, "me")
        return Follower(hook, cursor, self.open, **{"kinds": KINDS, "clock": self.clock, **options})

    def fail(self, *names: str) -> None:
        for name in names:
            submit(self.ledger, line_job(key=identity(name)))
            (lease,) = self.ledger.claim("w", 1, lease_ttl_s=60)
            self.ledger.fail([Failure(lease.task_id, lease.fence, "E", name, permanent=True)])

    def messages(self) -> list[str]:
        """Of what was delivered, the names of the jobs."""
        told = {id: document["data"]["message"] for id, document in self.hook.tried}
        return [told[id].rpartition(": ")[2] for id in self.hook.got]

    def cursor(self) -> int:
        found = Cursor(self.store, "me").read()
        assert found is not None
        return found[0]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.ledger.close()


def test_what_was_there_before_the_first_start_is_not_told(world: World) -> None:
    world.fail("old")
    follower = world.follower()
    world.fail("a", "b", "c")
    follower.step(world.ledger, world.stop)
    follower.step(world.ledger, world.stop)
    assert world.messages() == ["a", "b", "c"]
    assert all(document["type"] == "task.exhausted" for _, document in world.hook.tried)


def test_a_document_has_what_the_page_promises(world: World) -> None:
    follower = world.follower()
    world.fail("a")
    follower.step(world.ledger, world.stop)
    ((id, document),) = world.hook.tried
    assert document.keys() == {"type", "timestamp", "data"}
    assert document["timestamp"].endswith("Z")
    assert document["data"].keys() == {"id", "subject", "message", "remedy", "held_back"}
    assert document["data"]["id"] == id


def test_whoever_starts_again_tells_the_rest(world: World) -> None:
    world.follower().step(world.ledger, world.stop)
    world.fail("a", "b")
    world.follower().step(world.ledger, world.stop)
    world.fail("c")
    world.follower().step(world.ledger, world.stop)
    assert world.messages() == ["a", "b", "c"]


def test_a_receiver_that_is_down_gets_all_of_it_later_in_order(world: World) -> None:
    follower = world.follower()
    world.fail("a", "b")
    world.hook.answers = [DOWN] * 6 + [Answer(500, ""), Answer(302, "")]
    follower.step(world.ledger, world.stop)
    assert world.messages() == ["a", "b"]
    assert len({id for id, _ in world.hook.tried[:9]}) == 1
    assert world.stop.waits == sorted(world.stop.waits, key=lambda wait_s: wait_s > 200)
    assert 240 <= world.stop.waits[-1] <= 360


def test_a_receiver_that_asks_for_time_gets_it(world: World) -> None:
    follower = world.follower()
    world.fail("a")
    world.hook.answers = [Answer(429, "", wait_s=777)]
    follower.step(world.ledger, world.stop)
    assert world.stop.waits == [777]


def stopped_after(world: World, *, tries: int) -> None:
    """Run a follower to a stop in the middle of its tries."""
    world.stop.for_s = sum(world.stop.waits) + 0.5 * tries
    world.follower().run(world.stop)
    world.stop.for_s = 10 * 24 * 3600 + sum(world.stop.waits)


def test_a_stop_before_the_delivery_loses_nothing(world: World) -> None:
    world.follower()
    world.fail("a")
    world.hook.always = DOWN
    stopped_after(world, tries=1)
    assert world.hook.tried
    (failed,) = [one.seq for one in world.ledger.events() if one.now == "failed" and one.task]
    assert world.cursor() < failed
    world.hook.always = None
    world.follower().step(world.ledger, world.stop)
    assert world.messages() == ["a"]
    assert len({id for id, _ in world.hook.tried}) == 1


def test_an_end_between_delivery_and_cursor_repeats_the_same_id(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = world.follower()
    world.fail("a", "b")

    def broken(*_: object) -> None:
        raise StoreError("it is gone")

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "replace", broken)
        follower.step(world.ledger, world.stop)
    world.follower().step(world.ledger, world.stop)
    assert world.messages() == ["a", "b", "a", "b"]
    assert world.hook.got[:2] == world.hook.got[2:]


def test_a_cooldown_goes_on_over_a_restart(world: World) -> None:
    world.follower()
    submit(world.ledger, line_job(key=identity("a")))
    for _ in range(3):
        (lease,) = world.ledger.claim("w", 1, lease_ttl_s=60)
        world.ledger.fail([Failure(lease.task_id, lease.fence, "E", "no", permanent=True)])
        world.follower(kinds=["task.exhausted"]).step(world.ledger, world.stop)
        world.ledger.retry(identity("a"))
        world.clock.advance(200)
    held_back = [document["data"]["held_back"] for _, document in world.hook.tried]
    assert held_back == [0, 1]


def test_after_a_day_it_is_given_up_and_the_next_is_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    follower = world.follower()
    world.fail("a")
    world.hook.always = DOWN
    started_ms = world.clock.now_ms()
    follower.step(world.ledger, world.stop)
    assert world.clock.now_ms() - started_ms > GIVE_UP_MS
    assert world.clock.now_ms() - started_ms < GIVE_UP_MS + 400_000
    assert "an alert is given up" in caplog.text
    world.hook.always = None
    world.fail("b")
    follower.step(world.ledger, world.stop)
    assert world.messages() == ["b"]


@pytest.mark.parametrize("status", [400, 403, 413, 422])
def test_an_alert_that_is_refused_does_not_hold_up_the_next(
    world: World, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    follower = world.follower()
    world.fail("a", "b")
    world.hook.answers = [Answer(status, f"it answered {status}")] * TRIES_MIN
    started_ms = world.clock.now_ms()
    follower.step(world.ledger, world.stop)
    assert world.messages() == ["b"]
    assert world.clock.now_ms() - started_ms < 10 * 60_000
    assert f"it answered {status}" in caplog.text


def test_an_old_alert_is_tried_nevertheless(world: World) -> None:
    world.follower()
    world.fail("a")
    world.clock.advance(3 * 24 * 3600)
    world.hook.answers = [DOWN, DOWN]
    world.follower().step(world.ledger, world.stop)
    assert world.messages() == ["a"]


def test_gone_is_gone_until_a_restart(world: World, caplog: pytest.LogCaptureFixture) -> None:
    follower = world.follower()
    world.fail("a", "b")
    world.hook.answers = [Answer(410, "")]
    follower.run(world.stop)
    assert len(world.hook.tried) == 1
    assert "is gone" in caplog.text
    world.follower().step(world.ledger, world.stop)
    assert world.messages() == ["a", "b"]


def test_another_ledger_is_begun_anew(world: World, tmp_path: Path) -> None:
    world.fail("a", "b", "c")
    world.follower()
    world.ledger.close()
    world.path = tmp_path / "other.sqlite"
    world.ledger = world.open()
    follower = world.follower()
    world.fail("d")
    follower.step(world.ledger, world.stop)
    assert world.messages() == ["d"]


def test_a_ledger_that_was_away_is_followed_again(world: World) -> None:
    world.fail("old")
    opened: list[Ledger] = []

    def open_ledger() -> Ledger:
        opened.append(world.open())
        if len(opened) == 2:
            opened[-1].close()  # and reads fail
        return opened[-1]

    follower = Follower(
        cast(Hook, world.hook),
        Cursor(world.store, "me"),
        open_ledger,
        kinds=KINDS,
        clock=world.clock,
    )
    world.fail("a")
    world.stop.for_s = 30
    with pytest.raises(LedgerError):
        follower.run(world.stop)
    follower.run(world.stop)
    assert world.messages() == ["a"]


def test_after_an_error_that_nobody_expected_it_goes_on_from_its_cursor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the rules remember may be half of the truth then."""
    follower = world.follower()
    world.fail("a", "b")
    sent = world.hook.send

    def broken(id: str, body: bytes) -> Answer:
        if len(world.hook.got) == 1:
            monkeypatch.setattr(world.hook, "send", sent)
            raise ZeroDivisionError
        return sent(id, body)

    monkeypatch.setattr(world.hook, "send", broken)
    with pytest.raises(ZeroDivisionError):
        follower.run(world.stop)
    world.stop.for_s = 30
    follower.run(world.stop)
    assert world.messages() == ["a", "b"]


def test_a_task_that_three_hosts_gave_back_is_told(world: World) -> None:
    follower = world.follower()
    submit(world.ledger, line_job(key=identity("a")))
    for host in ("h1", "h1", "h2", "h3"):
        (lease,) = world.ledger.claim(f"w-{host}", 1, lease_ttl_s=60)
        world.ledger.release(
            [(lease.task_id, lease.fence)],
            reason=Reason.NO_DEVICE,
            message=f"{host}: no camera",
            host=host,
            until_s=0.0,
        )
        follower.step(world.ledger, world.stop)
        assert bool(world.hook.got) == (host == "h3")
    assert world.messages() == ["no camera"]
    (_, told) = world.hook.tried[0]
    assert (told["type"], told["data"]["subject"]["hosts"]) == ("task.stuck", 3)
    assert "no worker can run" in told["data"]["message"]


def test_quiet_events_move_the_cursor_now_and_then(world: World) -> None:
    follower = world.follower()
    begun = world.cursor()
    for name in ("a", "b"):
        submit(world.ledger, line_job(key=identity(name)))
        follower.step(world.ledger, world.stop)
    first = world.cursor()
    assert first > begun
    world.clock.advance(61)
    submit(world.ledger, line_job(key=identity("c")))
    follower.step(world.ledger, world.stop)
    assert world.cursor() > first


def test_situations_are_looked_at_once_a_minute_and_told(world: World) -> None:
    looked: list[int] = []

    def look(_: Ledger) -> list[Situation]:
        looked.append(world.clock.now_ms())
        return [Situation("disk.low", "x", {}, "full: x", "")] if len(looked) > 1 else []

    follower = world.follower(looks=[look])
    for _ in range(4):
        follower.step(world.ledger, world.stop)
        world.clock.advance(LOOK_EVERY_S / 2)
    assert len(looked) == 2
    assert world.messages() == ["x"]


def refused(*words: str, **settings: Any) -> None:
    known: dict[str, Any] = {
        "webhook_urls": "https://host/x",
        "webhook_secret": f"whsec_{'A' * 32}",
    }
    with pytest.raises(UsageError) as caught:
        hooks_of(Settings(**{**known, **settings}), FakeClock())
    for word in words:
        assert word in str(caught.value)


def test_settings_that_cannot_work_are_refused() -> None:
    refused("webhook_secret", "openssl", webhook_secret=None)
    refused("whsec_", webhook_secret="hunter2")
    refused("neither http nor https", webhook_urls="ftp://host/x")
    refused("task.explodes", "task.exhausted", webhook_kinds="task.explodes")
    assert hooks_of(Settings(webhook_secret="hunter2"), FakeClock()) == {}  # type: ignore[arg-type]


def test_nothing_runs_without_a_url(tmp_path: Path) -> None:
    settings = Settings(ledger=str(tmp_path / "l.sqlite"), store=str(tmp_path / "store"))
    with ExitStack() as opened:
        assert alert_services(Fleet(settings), Uploads(settings), opened) == []
    assert list(tmp_path.iterdir()) == []
