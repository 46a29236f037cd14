"""A notifier within one process: what a thread rings, the thread that waits in `select` hears.

Also the near half of every notifier that hears from elsewhere. It must never write to a descriptor
after `close`, because the number may be somebody else's by then.
"""

from __future__ import annotations

import os
import threading


class LocalNotifier:
    """A pipe that holds one byte while there is a hint, and none otherwise."""

    failures = 0

    def __init__(self, *, rung: bool = True) -> None:
        """Without `rung` it is quiet at first, for whoever knows when listening begins."""
        self._read, self._write = os.pipe()
        self._lock = threading.Lock()
        self.rung = False
        """Whether there is a hint that was not heard."""
        self._closed = False
        if rung:
            self.notify()

    def notify(self, priority: int = 0) -> None:
        with self._lock:
            if not self.rung and not self._closed:
                os.write(self._write, b"\0")
                self.rung = True

    def fileno(self) -> int:
        if self._closed:
            raise ValueError("a notifier that was closed cannot be listened to")
        return self._read

    def hear(self) -> None:
        with self._lock:
            if self.rung and not self._closed:
                os.read(self._read, 1)
                self.rung = False

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self._write)
