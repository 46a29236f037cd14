"""Hashing the files that a server's clients submit, in threads of its own.

Nobody who serves requests reads a whole file: a request waits for its source without a thread, and
everybody who asks for one file meanwhile gets the answer of one reading. The hash is remembered
with the file's device, inode, size and times, so that the next request reads nothing.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from intermission.backends.source_files import signature
from intermission.composition.fleet import Fleet
from intermission.composition.locations import identify_location
from intermission.model import Source

AT_ONCE = 2
"""How many files are read at a time: each is hashed by all cores."""


class SourceHashing:
    """The files that are being hashed. Threads end with the process, whatever they read."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._turns = threading.Semaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._hashing: dict[tuple[Path, str], Future[Source]] = {}

    def source(self, path: Path) -> Future[Source]:
        """What a file is, as soon as that is known. Raises `SourceError` if it can't be read."""
        key = path, signature(path)
        with self._lock:
            found = self._hashing.get(key)
            if found is None:
                found = self._hashing[key] = Future()
                found.set_running_or_notify_cancel()  # whoever goes away takes nobody along
                work = partial(self._hash, key, found)
                threading.Thread(target=work, name="source-hash", daemon=True).start()
            return found

    def _hash(self, key: tuple[Path, str], answer: Future[Source]) -> None:
        path, _ = key
        app = self._fleet.app
        with self._turns:
            try:
                store = app.workspace(path).open_store()
                found = identify_location(path, store, app.settings)
            except Exception as e:  # it is raised again where the answer is waited for
                answer.set_exception(e)
            else:
                answer.set_result(found)
        with self._lock:
            del self._hashing[key]
