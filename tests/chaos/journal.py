"""What was done when, to whom: a log that a person can read, and the same lines for the judge."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path


class Journal:
    """Lines with the time since the start; for any thread."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.counts: Counter[str] = Counter()
        self._stream = path.open("w", buffering=1)
        self._lock = threading.Lock()
        self.began_s = time.time()

    def now_s(self) -> float:
        return time.time() - self.began_s

    def note(self, whom: str, what: str) -> None:
        with self._lock:
            for line in what.splitlines() or [""]:
                self._stream.write(f"{self.now_s():8.1f} s  {whom:<12} {line}\n")

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def close(self) -> None:
        self._stream.close()
