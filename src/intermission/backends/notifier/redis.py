"""A notifier over a Redis list, one for each fleet.

Idle workers wait for the next hint of the list, and Redis gives it to the one that has waited
longest: the others sleep on. The list is short and soon expires, because a hint is worth no more
than a poll interval: one that a dying worker took is lost, and the work is found by polling.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from intermission.backends.notifier.local import LocalNotifier
from intermission.backends.redis_client import TIMEOUT_S, redis_client
from intermission.backends.server_outage import PAUSE_MAX_S, ServerOutage

LIST = "intermission:notifier:"
"""Followed by the name of the fleet."""
LENGTH_MAX = 16
EXPIRES_S = 5
BLOCK_S = 2
CLOSE_S = 2.0
"""How long the end of a process may wait for its last hint to be sent."""


class RedisNotifier:
    """Of the idle listeners of a fleet, one gets a hint."""

    def __init__(
        self, url: str, *, fleet: str = "intermission", pause_max_s: float = PAUSE_MAX_S
    ) -> None:
        """`pause_max_s` is how long a server that is away is left alone at most."""
        self.key = LIST + fleet
        self._sender = redis_client(url)
        self._listener = redis_client(url, BLOCK_S + TIMEOUT_S)
        self._sending = ServerOutage("notifying through Redis", pause_max_s=pause_max_s)
        self._listening = ServerOutage("listening to Redis", pause_max_s=pause_max_s)
        self._hints: SimpleQueue[bool] = SimpleQueue()
        """True for a hint to send, False for the end."""
        self._is_queued = False
        self._near = LocalNotifier(notified=False)
        self._cleared = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}

    @property
    def failures(self) -> int:
        return self._sending.failures + self._listening.failures

    def notify(self) -> None:
        with self._lock:
            if self._closed.is_set() or self._is_queued:
                return
            self._is_queued = True
            self._hints.put(True)
            self._start("notifying", lambda: self._sending.keep_trying(self._send, self._closed))

    def fileno(self) -> int:
        with self._lock:
            if not self._closed.is_set():
                listen = self._listen
                self._start("listening", lambda: self._listening.keep_trying(listen, self._closed))
        return self._near.fileno()

    def clear(self) -> None:
        self._near.clear()
        self._cleared.set()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            self._hints.put(False)
        self._cleared.set()
        self._listener.close()  # ends the wait for a hint
        for thread in self._threads.values():
            thread.join(CLOSE_S)
        self._near.close()
        self._sender.close()

    def _start(self, name: str, target: Callable[[], None]) -> None:
        if name not in self._threads:
            self._threads[name] = threading.Thread(target=target, name=name, daemon=True)
            self._threads[name].start()

    def _send(self) -> None:
        """Hints have no order and no content: those that come meanwhile become one more."""
        while self._hints.get():
            self._is_queued = False
            with self._sender.pipeline(transaction=False) as pipeline:
                pipeline.rpush(self.key, "")
                pipeline.ltrim(self.key, 0, LENGTH_MAX - 1)
                pipeline.expire(self.key, EXPIRES_S)
                pipeline.execute()
            self._sending.succeeded()

    def _listen(self) -> None:
        """Take no more hints from others while this listener is busy with something else."""
        self._listener.ping()
        self._near.notify()
        while not self._closed.is_set():
            self._listening.succeeded()
            if self._listener.blpop([self.key], timeout=BLOCK_S):
                self._cleared.clear()
                self._near.notify()
                if not self._closed.is_set():  # else `close` has set it before it was cleared
                    self._cleared.wait()
