"""One reader of the ledger, any number of watchers.

The hub turns each page of events into bytes once, and sends the same bytes to everybody who
watches, one after the other in one task: a task or a timer for each would cost more than the
sending. Whoever does not take at once is waited for apart, and one who does not keep up is let go
instead of being kept in memory: it comes back with the number of the last event it saw, and misses
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Send

from intermission.model import Event
from intermission.operations.documents import EventDocument, GroupEventDocument
from intermission.operations.fleet_api import ENDED
from intermission.operations.rendition_progress import GroupNews
from intermission.services.event_log_reader import Ledger

BUFFER_MAX_BYTES = 1024 * 1024
"""What may wait for one watcher."""
KEEP_ALIVE_S = 15.0
SEND_S = 10.0
"""How long a watcher may take to accept what is sent."""
_LOG = logging.getLogger(__name__)
_STILL_HERE = b": still here\n\n"
GROUPED_JOBS_MAX = 256
"""Of how many jobs it is remembered how far their groups were."""
GROUPS_EVERY_S = 2.0
GROUPS_REST = 20
"""Groups that took so long to read are left alone for so many times as long."""
_UNNUMBERED = 2**62
"""For what comes after everything that a watcher may have seen."""


def frame(event: Event) -> bytes:
    """An event as `text/event-stream` has it.

    Its number stands first, which no library does: whoever reads line by line knows it with the
    data, and resumes behind it.
    """
    shape = EventDocument.of(event)
    data = shape.model_dump_json()
    return f"id: {event.seq}\nevent: {shape.event}\ndata: {data}\n\n".encode()


class Batch:
    """Consecutive events of one job, or of all, ready to be sent."""

    def __init__(self) -> None:
        self._seqs: list[int] = []
        self._frames: list[bytes] = []
        self._joined: bytes | None = None

    def add(self, seq: int, frames: bytes) -> None:
        self._seqs.append(seq)
        self._frames.append(frames)

    def after(self, seq: int) -> bytes:
        """Those with a higher number; joined once for everybody who wants all of them."""
        if seq >= self._seqs[0]:
            return b"".join(self._frames[bisect_right(self._seqs, seq) :])
        if self._joined is None:
            self._joined = b"".join(self._frames)
        return self._joined


class Watcher:
    """Somebody who wants the events of one job, or all of them, after the one numbered `after`.

    Of those the hub sends what comes after `since`, once it may; the others are in the ledger.
    """

    def __init__(self, job_key: str | None, after: int, since: int) -> None:
        self.job_key = job_key
        self.after = after
        self.since = since
        self.over = asyncio.Event()
        """Nothing more will come; what waits is still sent."""
        self._send: Send | None = None
        self._sending = asyncio.Lock()
        self._waiting: deque[bytes] = deque()
        self._size_bytes = 0
        self._told_s = 0.0
        """When something was last sent, or began to be."""

    def offer(self, frames: bytes) -> bool:
        """Keep this to be sent; whether somebody has to."""
        if not frames or self.over.is_set():
            return False
        self._size_bytes += len(frames)
        if self._size_bytes > BUFFER_MAX_BYTES:
            self._waiting.clear()
            self.over.set()
            return False
        self._waiting.append(frames)
        return self._send is not None and not self._sending.locked()

    def remind(self, now_s: float) -> bool:
        """Let a connection that is quiet be seen to live; one that takes nothing is let go."""
        if self._send is None:
            return False
        quiet_s = now_s - self._told_s
        if self._sending.locked():
            if quiet_s > SEND_S:
                self.over.set()
            return False
        return quiet_s >= KEEP_ALIVE_S and self.offer(_STILL_HERE)

    async def go_live(self, send: Send) -> None:
        """From now on the hub sends; first what has come meanwhile."""
        self._send = send
        self._told_s = time.monotonic()
        await self.drain()

    async def drain(self) -> None:
        """Send until nothing waits. Most often this takes no turn of the loop at all."""
        assert self._send is not None
        async with self._sending:
            while self._waiting:
                taken = b"".join(self._waiting)
                self._waiting.clear()
                self._size_bytes = 0
                self._told_s = time.monotonic()
                await self._send({"type": "http.response.body", "body": taken, "more_body": True})


@dataclass
class _Groups:
    """The groups of one job, as they were last told."""

    news: GroupNews
    read_at_s: float = 0.0
    """When they may be read again."""
    unread: list[Event] = field(default_factory=list[Event])
    """Events since they were read that may have changed them."""


class GroupFrames:
    """The groups of jobs, told after the events that changed them. They have no number.

    Reading them reads all tasks of a step. So a job's are read every few seconds at most, and
    seldom enough to take a small share of the time, however long that takes.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, _Groups] = OrderedDict()

    def after(self, ledger: Ledger, job_key: str, events: Sequence[Event], now_s: float) -> bytes:
        """The groups of a job that changed by its events, if it is time to read them."""
        if job_key not in self._jobs:
            rows = [row for row in ledger.jobs(job_key) if row.job.key == job_key]
            if not rows:
                return b""
            self._jobs[job_key] = _Groups(GroupNews(rows[0].job))
        self._jobs.move_to_end(job_key)
        while len(self._jobs) > GROUPED_JOBS_MAX:
            self._jobs.popitem(last=False)
        groups = self._jobs[job_key]
        groups.unread += groups.news.concerning(events)
        has_ended = any(event.task_id is None and event.now in ENDED for event in events)
        if now_s < groups.read_at_s and not has_ended:
            return b""
        return self._read(ledger, job_key, groups, now_s)

    def due(self, ledger: Ledger, now_s: float) -> dict[str, bytes]:
        """Those of jobs whose events came too soon after they were last read."""
        waiting = [
            (key, groups)
            for key, groups in self._jobs.items()
            if groups.unread and now_s >= groups.read_at_s
        ]
        return {key: self._read(ledger, key, groups, now_s) for key, groups in waiting}

    def _read(self, ledger: Ledger, job_key: str, groups: _Groups, now_s: float) -> bytes:
        began_s = time.monotonic()
        changed = groups.news.after(ledger, groups.unread)
        took_s = time.monotonic() - began_s
        if groups.unread:
            groups.read_at_s = now_s + max(GROUPS_EVERY_S, GROUPS_REST * took_s)
        groups.unread = []
        shapes = [GroupEventDocument(job=job_key, **group.model_dump()) for group in changed]
        return b"".join(
            f"event: group\ndata: {shape.model_dump_json()}\n\n".encode() for shape in shapes
        )


class EventBroadcaster:
    """Lives in the event loop; `begin` and `heard` alone are called by the tail's thread."""

    def __init__(self) -> None:
        self._seq: int | None = None
        self._watchers: dict[str | None, set[Watcher]] = {}
        self._due: deque[Watcher] = deque()
        self._pumps: set[asyncio.Task[None]] = set()
        self._remind_at_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._groups = GroupFrames()

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    def begin(self, seq: int) -> None:
        """The tail has found the end of the log."""
        self._call(self._begin, seq)

    def heard(self, ledger: Ledger, events: Sequence[Event]) -> None:
        """A page of events, or none; every look of the tail is also a chance to remind."""
        now_s = time.monotonic()
        batches: dict[str | None, Batch] = {}
        last = {event.job_key: event.seq for event in events}

        def add(job_key: str, seq: int, frames: bytes) -> None:
            for key in (None, job_key):
                batches.setdefault(key, Batch()).add(seq, frames)

        for event in events:
            frames = frame(event)
            if event.seq == last[event.job_key] and self._is_watched(event.job_key):
                own = [one for one in events if one.job_key == event.job_key]
                frames += self._groups.after(ledger, event.job_key, own, now_s)
            add(event.job_key, event.seq, frames)
        for job_key, frames in self._groups.due(ledger, now_s).items():
            if frames:
                add(job_key, _UNNUMBERED, frames)
        if batches:
            self._call(self._deliver, events[-1].seq if events else None, batches)
        if now_s >= self._remind_at_s:
            self._remind_at_s = now_s + min(1.0, KEEP_ALIVE_S)
            self._call(self._remind, now_s)

    def join(self, job_key: str | None, after: int) -> Watcher | None:
        """A new watcher, who hears of everything from now on; None while the log is unread."""
        if self._seq is None:
            return None
        watcher = Watcher(job_key, after, self._seq)
        self._watchers.setdefault(job_key, set()).add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        watching = self._watchers.get(watcher.job_key, set())
        watching.discard(watcher)
        if not watching:
            self._watchers.pop(watcher.job_key, None)

    def close(self) -> None:
        """End every stream, as when the server is about to stop."""
        for watcher in self._everybody():
            watcher.over.set()

    def _everybody(self) -> list[Watcher]:
        return [one for watching in self._watchers.values() for one in watching]

    def _begin(self, seq: int) -> None:
        self._seq = seq

    def _is_watched(self, job_key: str) -> bool:
        return job_key in self._watchers or None in self._watchers

    def _deliver(self, seq: int | None, batches: Mapping[str | None, Batch]) -> None:
        self._seq = self._seq if seq is None else seq
        for key, batch in batches.items():
            watching = self._watchers.get(key, ())
            self._due.extend(one for one in watching if one.offer(batch.after(one.after)))
        self._push()

    def _remind(self, now_s: float) -> None:
        self._due.extend(one for one in self._everybody() if one.remind(now_s))
        self._push()

    def _push(self) -> None:
        """Start sending, and look again: a watcher that has to be waited for must not hold up
        the others, who are then sent to by another task."""
        if self._due and self._loop is not None:
            pump = self._loop.create_task(self._pump())
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)
            self._loop.call_soon(self._push)

    async def _pump(self) -> None:
        while self._due:
            watcher = self._due.popleft()
            try:
                await watcher.drain()
            except Exception as e:  # whatever became of its connection: the others go on
                _LOG.debug("a watcher is gone: %s", e)
                watcher.over.set()

    def _call(self, function: Callable[..., None], *values: Any) -> None:
        # The loop may be gone while the tail's thread has not been told yet.
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *values)
