"""A notifier within one process: a thread notifies, and the thread that waits in `select` wakes up.

Also the near half of every notifier that is told from elsewhere. It must never write to a
descriptor after `close`, because the number may be another file's by then.
"""

from __future__ import annotations

import os
import threading


class LocalNotifier:
    """A pipe that holds one byte while there is a hint, and none otherwise."""

    failures = 0

    def __init__(self, *, notified: bool = True) -> None:
        """Without `notified` it is quiet at first, for those who know when listening begins."""
        self._read, self._write = os.pipe()
        self._lock = threading.Lock()
        self._has_hint = False
        self._closed = False
        if notified:
            self.notify()

    def notify(self) -> None:
        with self._lock:
            if not self._has_hint and not self._closed:
                os.write(self._write, b"\0")
                self._has_hint = True

    def fileno(self) -> int:
        if self._closed:
            raise ValueError("a notifier that was closed cannot be listened to")
        return self._read

    def clear(self) -> None:
        with self._lock:
            if self._has_hint and not self._closed:
                os.read(self._read, 1)
                self._has_hint = False

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self._write)
