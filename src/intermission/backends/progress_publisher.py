"""The event log over Redis Pub/Sub, for those who want to see it without a ledger or a server.

Every process of a fleet that reaches the ledger and Redis may publish; one at a time does, because
a lock in Redis is in its hands. It reads the event log and publishes every event once, in order.
When it is gone, another continues after the last event that was published. Nothing waits for it,
and what is published while nobody listens is lost: the log alone is complete.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Protocol

from intermission.backends.redis_client import redis_client
from intermission.backends.server_outage import PAUSE_MAX_S, ServerOutage
from intermission.model import Event
from intermission.ports.ledger import Ledger

CHANNEL = "intermission:progress:"
"""Followed by the key of the job."""
KEYS = "intermission:publisher:"
"""Followed by the name of the fleet: who publishes, and up to which event that was done."""
EVERY_S = 0.5
"""How often the log is read."""
HELD_S = 3.0
"""After this time without a sign of the publisher, another process takes its place."""
POSITION_S = 60
"""After this time without a publisher, the next begins with what is new."""
PAGE = 1000
CLOSE_S = 3.0


class Stop(Protocol):
    """When to stop: the two methods of a `threading.Event` that are needed here."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class ProgressPublisher:
    """One candidate for the fleet's publisher."""

    def __init__(
        self,
        url: str,
        fleet: str,
        open_ledger: Callable[[], Ledger],
        *,
        newest: Callable[[Ledger], int],
        describe: Callable[[Event], str],
    ) -> None:
        """`newest` gives the number of the log's last event; `describe` makes the messages."""
        self._redis = redis_client(url)
        self._lock_key = f"{KEYS}{fleet}:lock"
        self._position_key = f"{KEYS}{fleet}:position"
        self._open_ledger = open_ledger
        self._newest = newest
        self._describe = describe
        self._me = os.urandom(8).hex()

    def run(self, stop: Stop, succeeded: Callable[[], None]) -> None:
        """Publish while the lock is this process's, else wait for it, until `stop`.

        Raises whatever Redis or the ledger raise. `succeeded` is called after every turn.
        """
        while not stop.is_set():
            if self._redis.set(self._lock_key, self._me, nx=True, px=round(HELD_S * 1000)):
                with closing(self._open_ledger()) as ledger:
                    self._follow(ledger, stop, succeeded)
            succeeded()
            stop.wait(EVERY_S)

    def close(self) -> None:
        self._redis.close()

    def _follow(self, ledger: Ledger, stop: Stop, succeeded: Callable[[], None]) -> None:
        seq = self._newest(ledger)
        if (position := self._redis.get(self._position_key)) is not None:
            seq = min(seq, int(str(position)))  # a log that was begun anew has lower numbers
        while True:
            is_last = stop.is_set()
            events = ledger.events(seq, limit=PAGE)
            seq = events[-1].seq if events else seq
            if not self._publish(events, seq, give_back=is_last):
                return
            succeeded()
            if is_last:
                return
            if len(events) < PAGE:
                stop.wait(EVERY_S)

    def _publish(self, events: Sequence[Event], seq: int, *, give_back: bool) -> bool:
        """All in one transaction that keeps the lock; False if the lock is another's by now."""
        from redis.exceptions import WatchError

        with self._redis.pipeline() as pipeline:
            pipeline.watch(self._lock_key)
            if pipeline.get(self._lock_key) != self._me:
                return False
            pipeline.multi()
            for event in events:
                pipeline.publish(CHANNEL + event.job_key, self._describe(event))
            pipeline.set(self._position_key, seq, ex=POSITION_S)
            pipeline.pexpire(self._lock_key, 1 if give_back else round(HELD_S * 1000))
            try:
                pipeline.execute()
            except WatchError:
                return False
        return True


@contextmanager
def publishing(publisher: ProgressPublisher, *, pause_max_s: float = PAUSE_MAX_S) -> Iterator[None]:
    """Publish in a thread while the context lasts, whatever happens to the servers."""
    stop = threading.Event()
    outage = ServerOutage(
        "publishing progress to Redis",
        meanwhile="Nothing waits for it, and the event log has everything.",
        pause_max_s=pause_max_s,
    )
    thread = threading.Thread(
        target=lambda: outage.keep_trying(lambda: publisher.run(stop, outage.succeeded), stop),
        name="progress",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(CLOSE_S)
        publisher.close()
