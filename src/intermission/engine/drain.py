"""Being asked to stop: why, until when, and how the worker that is asked wakes up."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

from intermission.ports.clock import Clock


class Drain:
    """What a worker was asked so far. Signals and other threads may ask at any moment."""

    def __init__(self, clock: Clock, budget_s: float) -> None:
        self.reason: str | None = None
        """Of the first who asked."""
        self.deadline_s = math.inf
        """When running tasks must have ended; it never moves away."""
        self._clock = clock
        self._budget_s = budget_s
        # A signal may come while its own thread is in the middle of asking.
        self._lock = threading.RLock()
        self._wake: int | None = None

    def ask(self, reason: str, budget_s: float | None = None) -> None:
        """Leave running tasks this long; without a budget the usual time, or none if asked twice.

        The deadline is there before the reason: who sees the one may rely on the other.
        """
        with self._lock:
            if budget_s is None:
                budget_s = self._budget_s if self.reason is None else 0.0
            self.deadline_s = min(self.deadline_s, self._clock.monotonic_s() + budget_s)
            self.reason = self.reason or reason
            if self._wake is not None:
                with suppress(BlockingIOError):  # then it has been woken often enough
                    os.write(self._wake, b"\0")

    @contextmanager
    def listening(self) -> Generator[int, None, None]:
        """SIGTERM and SIGINT ask. Yields a file descriptor that anybody who asks makes readable.

        Outside the main thread, where Python allows no handlers, signals are left to the program.
        """
        read, write = os.pipe()
        os.set_blocking(write, False)
        is_main = threading.current_thread() is threading.main_thread()
        before = {
            number: signal.signal(number, lambda n, _: self.ask(signal.Signals(n).name))
            for number in ((signal.SIGTERM, signal.SIGINT) if is_main else ())
        }
        # The handler alone would be too late for a signal that comes just before the wait.
        old = signal.set_wakeup_fd(write, warn_on_full_buffer=False) if is_main else -1
        self._wake = write
        try:
            yield read
        finally:
            with self._lock:
                self._wake = None
            if is_main:
                signal.set_wakeup_fd(old)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(read)
            os.close(write)
