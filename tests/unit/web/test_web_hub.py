"""Fan-out of events: one page of the log, the same bytes for everybody, and no endless buffer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Message

from intermission.app.fleet import Fleet
from intermission.backends.ledger.memory import MemoryLedger
from intermission.model import Event, identity
from intermission.testing.jobs import line_job, submit
from intermission.web.api import events as streaming
from intermission.web.api import hub as hubs
from intermission.web.api.events import EventStream
from intermission.web.api.hub import Hub, Watcher

ONE, OTHER = identity("one"), identity("other")
NOBODY = MemoryLedger()


def event(seq: int, job_key: str = ONE) -> Event:
    return Event(seq, 0, job_key, seq, f"hear[{seq}]", "pending", "leased")


def ids(frames: bytes) -> list[int]:
    return [int(line[4:]) for line in frames.decode().splitlines() if line.startswith("id: ")]


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 10))

    run.__name__ = test.__name__
    return run


async def opened(seq: int = 0) -> Hub:
    hub = Hub()
    hub.open()
    hub.begin(seq)
    await asyncio.sleep(0)
    return hub


def joined(hub: Hub, job_key: str | None, after: int = 0) -> Watcher:
    watcher = hub.join(job_key, after)
    assert watcher is not None
    return watcher


@in_loop
async def test_everybody_gets_what_they_watch_in_order() -> None:
    hub = await opened()
    one, everything = joined(hub, ONE), joined(hub, None)
    hub.heard(NOBODY, [event(1), event(2, OTHER), event(3)])
    assert ids(await one.take(1)) == [1, 3]
    assert ids(await everything.take(1)) == [1, 2, 3]
    hub.leave(one)
    hub.heard(NOBODY, [event(4)])
    assert ids(await everything.take(1)) == [4]
    assert await one.take(0) == b""


@in_loop
async def test_nothing_is_told_twice_to_one_who_is_ahead_of_the_hub() -> None:
    hub = await opened(5)
    watcher = joined(hub, None, after=7)
    hub.heard(NOBODY, [event(6), event(7)])
    hub.heard(NOBODY, [event(8), event(9)])
    assert ids(await watcher.take(1)) == [8, 9]


@in_loop
async def test_nobody_joins_before_the_end_of_the_log_is_known() -> None:
    hub = Hub()
    hub.open()
    assert hub.join(None, 0) is None


@in_loop
async def test_a_watcher_that_does_not_take_is_let_go() -> None:
    hub = await opened()
    slow, quick = joined(hub, None), joined(hub, None)
    size_bytes = len(hubs.frame(event(1)))
    count = hubs.BUFFER_MAX_BYTES // size_bytes + 2
    half = count // 2
    hub.heard(NOBODY, [event(n) for n in range(1, half)])
    assert len(ids(await quick.take(1))) == half - 1
    hub.heard(NOBODY, [event(n) for n in range(half, count + 1)])
    assert ids(await quick.take(1))[-1] == count
    assert slow.is_over
    assert await slow.take(1) == b""


@in_loop
async def test_closing_ends_every_stream() -> None:
    hub = await opened()
    watcher = joined(hub, ONE)
    hub.heard(NOBODY, [event(1)])
    await asyncio.sleep(0)
    hub.close()
    assert ids(await watcher.take(60)) == [1]
    assert await watcher.take(60) == b""
    assert watcher.is_over


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
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.01)

    async def scenario() -> None:
        hub, far = await opened(), Connection()
        stream = EventStream(fleet, hub, None, 0)
        task = asyncio.create_task(stream({"type": "http"}, far.receive, far.send))
        while b": still here\n\n" not in far.sent:
            await asyncio.sleep(0.001)
        hub.close()
        await task
        assert far.is_complete

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_a_stream_nobody_reads_is_given_up(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "SEND_S", 0.05)

    async def scenario() -> None:
        hub, far = await opened(), Connection(stuck_after=0)
        await EventStream(fleet, hub, None, 0)({"type": "http"}, far.receive, far.send)
        assert not far.is_complete
        assert not hub._watchers

    asyncio.run(asyncio.wait_for(scenario(), 10))
