"""Fan-out of events: one page of the log, the same bytes for everybody, and no endless buffer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Message

from intermission.composition.fleet import Fleet
from intermission.model import Event, identity
from intermission.testing.jobs import line_job, submit
from intermission.testing.scratch_ledger import scratch_ledger
from intermission.web.api import event_broadcaster as hubs
from intermission.web.api import events as streaming
from intermission.web.api.event_broadcaster import EventBroadcaster, Watcher
from intermission.web.api.events import EventStream

ONE, OTHER = identity("one"), identity("other")
NOBODY = scratch_ledger()


def event(seq: int, job_key: str = ONE) -> Event:
    return Event(seq, 0, job_key, seq, f"hear[{seq}]", "pending", "leased")


def ids(frames: bytes) -> list[int]:
    return [int(line[4:]) for line in frames.decode().splitlines() if line.startswith("id: ")]


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 10))

    run.__name__ = test.__name__
    return run


async def opened(seq: int = 0) -> EventBroadcaster:
    hub = EventBroadcaster()
    hub.open()
    hub.begin(seq)
    await asyncio.sleep(0)
    return hub


class Far:
    """The far end of a watcher's connection: what it was sent, unless it is stuck."""

    def __init__(self) -> None:
        self.sent = b""
        self.free = asyncio.Event()
        self.free.set()

    async def send(self, message: Message) -> None:
        await self.free.wait()
        self.sent += message["body"]

    async def until(self, *seqs: int) -> None:
        """It was sent these events and no others."""
        while self.sent.count(b"id: ") < len(seqs):
            await asyncio.sleep(0)
        assert ids(self.sent) == [*seqs]


async def joined(hub: EventBroadcaster, job_key: str | None, after: int = 0) -> tuple[Watcher, Far]:
    watcher, far = hub.join(job_key, after), Far()
    assert watcher is not None
    await watcher.go_live(far.send)
    return watcher, far


async def turns(count: int = 10) -> None:
    """Let everything happen that needs no waiting."""
    for _ in range(count):
        await asyncio.sleep(0)


@in_loop
async def test_everybody_gets_what_they_watch_in_order() -> None:
    hub = await opened()
    one, of_one = await joined(hub, ONE)
    _, everything = await joined(hub, None)
    hub.heard(NOBODY, [event(1), event(2, OTHER), event(3)])
    await of_one.until(1, 3)
    await everything.until(1, 2, 3)
    hub.leave(one)
    hub.heard(NOBODY, [event(4)])
    await everything.until(1, 2, 3, 4)
    await of_one.until(1, 3)


@in_loop
async def test_what_comes_while_the_ledger_is_read_comes_after_it() -> None:
    hub = await opened()
    watcher, far = hub.join(None, 0), Far()
    assert watcher is not None
    hub.heard(NOBODY, [event(1)])
    await turns()
    assert not far.sent
    await watcher.go_live(far.send)
    await far.until(1)


@in_loop
async def test_nothing_is_told_twice_to_one_who_is_ahead_of_the_hub() -> None:
    hub = await opened(5)
    _, far = await joined(hub, None, after=7)
    hub.heard(NOBODY, [event(6), event(7)])
    hub.heard(NOBODY, [event(8), event(9)])
    await far.until(8, 9)


@in_loop
async def test_nobody_joins_before_the_end_of_the_log_is_known() -> None:
    hub = EventBroadcaster()
    hub.open()
    assert hub.join(None, 0) is None


@in_loop
async def test_one_who_takes_nothing_holds_up_nobody() -> None:
    hub = await opened()
    fars = [(await joined(hub, None))[1] for _ in range(10)]
    for far in fars[::3]:
        far.free.clear()
    for n in (1, 2):
        hub.heard(NOBODY, [event(n)])
        await turns(50)
    assert [ids(far.sent) for far in fars] == [[] if n % 3 == 0 else [1, 2] for n in range(10)]
    for far in fars:
        far.free.set()
        await far.until(1, 2)
    await turns()
    assert not hub._pumps


@in_loop
async def test_one_whose_connection_breaks_is_let_go() -> None:
    async def broken(_: Message) -> None:
        raise OSError("reset by peer")

    hub = await opened()
    watcher = hub.join(None, 0)
    assert watcher is not None
    await watcher.go_live(broken)
    _, far = await joined(hub, None)
    hub.heard(NOBODY, [event(1)])
    await far.until(1)
    await watcher.over.wait()


@in_loop
async def test_a_watcher_that_does_not_keep_up_is_let_go() -> None:
    hub = await opened()
    watcher, slow = await joined(hub, None)
    _, quick = await joined(hub, None)
    slow.free.clear()
    size_bytes = len(hubs.frame(event(1)))
    count = hubs.BUFFER_MAX_BYTES // size_bytes + 2
    hub.heard(NOBODY, [event(1)])
    await quick.until(1)
    assert not watcher.over.is_set()
    hub.heard(NOBODY, [event(n) for n in range(2, count // 2)])
    await quick.until(*range(1, count // 2))
    assert not watcher.over.is_set()
    hub.heard(NOBODY, [event(n) for n in range(count // 2, count + 2)])
    await quick.until(*range(1, count + 2))
    assert watcher.over.is_set()
    slow.free.set()
    await slow.until(1)


@in_loop
async def test_one_who_takes_nothing_for_a_while_is_let_go() -> None:
    hub = await opened()
    watcher, far = await joined(hub, None)
    watcher._told_s -= 3600  # nothing happened for an hour
    far.free.clear()
    hub.heard(NOBODY, [event(1)])
    await turns()
    now_s = time.monotonic()
    assert not watcher.remind(now_s)
    assert not watcher.over.is_set()
    watcher.remind(now_s + hubs.SEND_S + 1)
    assert watcher.over.is_set()


@in_loop
async def test_closing_ends_every_stream() -> None:
    hub = await opened()
    watcher, far = await joined(hub, ONE)
    hub.heard(NOBODY, [event(1)])
    await far.until(1)
    hub.close()
    await watcher.over.wait()


class Connection:
    """The far end of a stream, as the server sees it."""

    def __init__(self, *, stuck_after: int | None = None) -> None:
        self.sent: list[bytes] = []
        self.is_complete = False
        self.gone = asyncio.Event()
        self._stuck_after = stuck_after

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.is_complete = not message["more_body"]
            self.sent.append(message["body"])
            if self._stuck_after is not None and len(self.sent) > self._stuck_after:
                await asyncio.Event().wait()

    async def until(self, seq: int) -> None:
        while seq not in ids(b"".join(self.sent)):
            await asyncio.sleep(0.001)


def recorded(fleet: Fleet, count: int = 20) -> list[int]:
    """The numbers of some events, made by jobs that come and are cancelled."""
    for n in range(count):
        job = submit(fleet.ledger, line_job(key=identity(str(n))))
        fleet.ledger.cancel(job.key, reason="enough")
    return [event.seq for event in fleet.ledger.events()]


def test_a_stream_tells_what_was_and_then_what_happens(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "PAGE", 7)
    seqs = recorded(fleet)

    async def scenario() -> None:
        hub, far = await opened(seqs[-1]), Connection()
        stream = EventStream(fleet, hub, None, seqs[3])
        task = asyncio.create_task(stream({"type": "http"}, far.receive, far.send))
        await far.until(seqs[-1])
        hub.heard(NOBODY, [event(seqs[-1] + 1)])
        await far.until(seqs[-1] + 1)
        far.gone.set()
        await task
        assert ids(b"".join(far.sent)) == [*seqs[4:], seqs[-1] + 1]
        assert not hub._watchers

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_stream_says_that_it_is_still_there(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "KEEP_ALIVE_S", 0.0)

    async def scenario() -> None:
        hub, far = await opened(), Connection()
        stream = EventStream(fleet, hub, None, 0)
        task = asyncio.create_task(stream({"type": "http"}, far.receive, far.send))
        while b": still here\n\n" not in far.sent:
            hub.heard(NOBODY, [])  # the tail looked, and found nothing
            await asyncio.sleep(0.001)
        hub.close()
        await task
        assert far.is_complete

    asyncio.run(asyncio.wait_for(scenario(), 10))


@pytest.mark.parametrize("stuck_after", [0, 1], ids=["at first", "later"])
def test_a_stream_nobody_reads_is_given_up(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, stuck_after: int
) -> None:
    monkeypatch.setattr(streaming, "SEND_S", 0.05)
    monkeypatch.setattr(hubs, "SEND_S", 0.05)
    monkeypatch.setattr(hubs, "KEEP_ALIVE_S", 0.0)

    async def scenario() -> None:
        hub, far = await opened(), Connection(stuck_after=stuck_after)
        stream = EventStream(fleet, hub, None, 0)
        task = asyncio.create_task(stream({"type": "http"}, far.receive, far.send))
        while not task.done():
            hub.heard(NOBODY, [])
            await asyncio.sleep(0.001)
        assert not far.is_complete
        assert not hub._watchers

    asyncio.run(asyncio.wait_for(scenario(), 10))
