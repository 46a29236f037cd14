"""The far half of a notifier: a thread that talks to a server, so that no caller waits.

What comes while it talks becomes one more hint. It must never let an exception out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from intermission.backends.notifier.breaker import Breaker

CLOSE_S = 2.0
"""How long the end of a process may wait for its last hint to be sent."""
log = logging.getLogger(__name__)


class NotifyingThread:
    """Sends hints as long as its breaker allows it. The thread starts with the first."""

    def __init__(
        self,
        breaker: Breaker,
        send: Callable[[Collection[int]], None],
        hang_up: Callable[[], None],
    ) -> None:
        """`send` gets the priorities of the hints, as -1, 0 or 1; one thread calls both."""
        self._breaker = breaker
        self._send = send
        self._hang_up = hang_up
        self._wanted = threading.Event()
        self._levels: set[int] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def notify(self, priority: int) -> None:
        with self._lock:
            if self._closed:
                return
            self._levels.add((priority > 0) - (priority < 0))
            self._wanted.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
                self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._wanted.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            with self._lock:
                self._wanted.clear()
                levels, self._levels, closed = self._levels, set(), self._closed
            if levels:
                self._try(levels)
            if closed:
                break
        self._hang_up()

    def _try(self, levels: Collection[int]) -> None:
        if not self._breaker.allows():
            self._breaker.skipped()
            return
        try:
            self._send(levels)
        except Exception as e:  # whatever a driver raises: it was only a hint
            log.debug("a hint was lost", exc_info=True)
            self._breaker.failed(e)
        else:
            self._breaker.succeeded()
