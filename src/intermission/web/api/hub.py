"""One reader of the ledger, any number of watchers.

The hub turns each page of events into bytes once, and hands the same bytes to everybody who
watches. A watcher that does not keep up is let go instead of being kept in memory: it comes back
with the number of the last event it saw, and misses nothing.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from intermission.app.groups import GroupNews, group_fields
from intermission.model import Event
from intermission.ports.ledger import Ledger
from intermission.web.api.shapes import EventShape, GroupEventShape

BUFFER_MAX_BYTES = 1024 * 1024
"""What may wait for one watcher."""
GROUPED_JOBS_MAX = 256
"""Of how many jobs it is remembered how far their groups were."""


def frame(event: Event) -> bytes:
    """An event as `text/event-stream` has it."""
    shape = EventShape.of(event)
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

    Of those the hub hands over what comes after `since`; the others are in the ledger.
    """

    def __init__(self, job_key: str | None, after: int, since: int) -> None:
        self.job_key = job_key
        self.after = after
        self.since = since
        self.is_over = False
        self._waiting: deque[bytes] = deque()
        self._size_bytes = 0
        self._wake = asyncio.Event()

    def offer(self, batch: Batch) -> None:
        frames = batch.after(self.after)
        if not frames or self.is_over:
            return
        self._size_bytes += len(frames)
        if self._size_bytes > BUFFER_MAX_BYTES:
            self._waiting.clear()
            self.end()
            return
        self._waiting.append(frames)
        self._wake.set()

    def end(self) -> None:
        """Nothing more will come; what waits is still handed out."""
        self.is_over = True
        self._wake.set()

    async def take(self, timeout_s: float) -> bytes:
        """What has come since the last time; nothing after the time-out or at the end."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return b""
        if not self.is_over:
            self._wake.clear()
        taken = b"".join(self._waiting)
        self._waiting.clear()
        self._size_bytes = 0
        return taken


class GroupFrames:
    """The groups of jobs, told after the events that changed them. They have no number."""

    def __init__(self) -> None:
        self._news: OrderedDict[str, GroupNews] = OrderedDict()

    def after(self, ledger: Ledger, job_key: str, events: Sequence[Event]) -> bytes:
        if job_key not in self._news:
            rows = [row for row in ledger.jobs(job_key) if row.job.key == job_key]
            if not rows:
                return b""
            self._news[job_key] = GroupNews(rows[0].job)
        self._news.move_to_end(job_key)
        while len(self._news) > GROUPED_JOBS_MAX:
            self._news.popitem(last=False)
        own = [event for event in events if event.job_key == job_key]
        shapes = [
            GroupEventShape(job=job_key, **group_fields(group))
            for group in self._news[job_key].after(ledger, own)
        ]
        return b"".join(
            f"event: group\ndata: {shape.model_dump_json()}\n\n".encode() for shape in shapes
        )


class Hub:
    """Lives in the event loop; `heard` alone is called by the tail's thread."""

    def __init__(self) -> None:
        self._seq: int | None = None
        self._watchers: dict[str | None, set[Watcher]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._groups = GroupFrames()

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    def begin(self, seq: int) -> None:
        """The tail has found the end of the log."""
        self._call(self._begin, seq)

    def heard(self, ledger: Ledger, events: Sequence[Event]) -> None:
        if not events:
            return
        batches: dict[str | None, Batch] = {None: Batch()}
        last = {event.job_key: event.seq for event in events}
        for event in events:
            frames = frame(event)
            if event.seq == last[event.job_key] and self._watchers:
                frames += self._groups.after(ledger, event.job_key, events)
            batches[None].add(event.seq, frames)
            batches.setdefault(event.job_key, Batch()).add(event.seq, frames)
        self._call(self._deliver, events[-1].seq, batches)

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
        for watcher in [one for watching in self._watchers.values() for one in watching]:
            watcher.end()

    def _begin(self, seq: int) -> None:
        self._seq = seq

    def _deliver(self, seq: int, batches: Mapping[str | None, Batch]) -> None:
        self._seq = seq
        for key, batch in batches.items():
            for watcher in self._watchers.get(key, ()):
                watcher.offer(batch)

    def _call(self, function: Callable[..., None], *values: Any) -> None:
        # The loop may be gone while the tail's thread has not been told yet.
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *values)
