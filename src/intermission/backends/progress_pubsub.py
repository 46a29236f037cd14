"""Progress over Redis Pub/Sub, for whoever wants to see it without asking a ledger or a server.

Fire and forget: what is told may be lost, and nothing waits for it. A thread does the talking,
with the newest event of each task at most once a second; a server that fails is left alone for a
while by a breaker. The event log alone is complete.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from intermission.backends.notifier.breaker import OPEN_S, Breaker
from intermission.backends.notifier.redis import CLOSE_S, TIMEOUT_S, client
from intermission.model import Event

CHANNEL = "intermission:progress:"
"""Followed by the key of the job."""
EVERY_S = 1.0
"""How often a task, or a job, is told about."""
TOGETHER_S = 0.1
"""What comes within this time is sent together."""
WAITING_MAX = 1000
"""Tasks with something to tell; of more than that, the oldest are dropped."""
log = logging.getLogger(__name__)

Subject = tuple[str, int | None]
"""A task of a job, or the job itself."""


class RedisProgress:
    """Publishes events. The thread starts with the first of them."""

    def __init__(
        self, url: str, describe: Callable[[Event], str], *, open_s: float = OPEN_S
    ) -> None:
        """`describe` makes the message; `open_s` is how long the breaker stays open."""
        self._redis = client(url, TIMEOUT_S)
        self._describe = describe
        self._breaker = Breaker(
            "publishing progress to Redis",
            open_s=open_s,
            meanwhile="Nothing waits for it, and the event log has everything.",
        )
        self._lock = threading.Lock()
        self._waiting: dict[Subject, Event] = {}
        self._sent_s: dict[Subject, float] = {}
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def failures(self) -> int:
        """How many attempts to publish went wrong, or were not made because of that."""
        return self._breaker.failures

    def tell(self, event: Event) -> None:
        """From any thread. Raises nothing, and soon returns."""
        with self._lock:
            if self._closed.is_set():
                return
            self._waiting[event.job_key, event.task_id] = event
            if len(self._waiting) > WAITING_MAX:
                del self._waiting[next(iter(self._waiting))]
            self._wanted.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Tell what waits, if that does not take long. A second call does nothing."""
        with self._lock:
            self._closed.set()
            self._wanted.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        self._redis.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wanted.wait()
            self._publish(self._due(time.monotonic()))
            self._closed.wait(TOGETHER_S)
        with self._lock:
            last = list(self._waiting.values())
        self._publish(last)

    def _due(self, now_s: float) -> list[Event]:
        """Take what may be told by now; the rest waits for its time."""
        with self._lock:
            self._sent_s = {
                subject: at_s for subject, at_s in self._sent_s.items() if now_s - at_s < EVERY_S
            }
            due = [subject for subject in self._waiting if subject not in self._sent_s]
            self._sent_s |= dict.fromkeys(due, now_s)
            events = [self._waiting.pop(subject) for subject in due]
            if not self._waiting and not self._closed.is_set():
                self._wanted.clear()
        return events

    def _publish(self, events: Sequence[Event]) -> None:
        if not events:
            return
        if not self._breaker.allows():
            self._breaker.skipped()
            return
        try:
            with self._redis.pipeline(transaction=False) as pipeline:
                for event in events:
                    pipeline.publish(CHANNEL + event.job_key, self._describe(event))
                pipeline.execute()
        except Exception as e:  # whatever a driver raises: nothing depends on it
            log.debug("%d messages were lost", len(events), exc_info=True)
            self._breaker.failed(e)
        else:
            self._breaker.succeeded()
