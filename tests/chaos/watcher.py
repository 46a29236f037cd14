"""What is seen while it happens: receipts that appear, workers that leave, disks that fill."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from pathlib import Path

from chaos.fleet import Fleet
from chaos.journal import Journal
from chaos.strike import Striker

LOOK_EVERY_S = 2.0
READY = "is at work"
"""What a worker says when it has started."""


class Watcher:
    """Looks again and again, from a thread of its own. It starts no process: the caller does."""

    def __init__(self, fleet: Fleet, journal: Journal, striker: Striker) -> None:
        self._fleet, self._journal, self._striker = fleet, journal, striker
        self.receipts: dict[Path, str] = {}
        """Every receipt that was ever seen, with the hash it had then."""
        self.exits: list[str] = []
        self.peak_bytes: Counter[str] = Counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watcher", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self.look_at_receipts()

    def _look(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self.look_at_receipts()
            for host in self._fleet.hosts.values():
                used = host.scratch.used_bytes()
                self.peak_bytes[host.name] = max(self.peak_bytes[host.name], used)

    def look_at_receipts(self) -> None:
        for root in (self._fleet.media, self._fleet.store):
            for path in root.rglob("receipts/*/*.json"):
                if path not in self.receipts:
                    self.receipts[path] = digest(path)

    def restart_the_lost(self) -> None:
        """A worker that left by itself is remembered, and started again so that work goes on."""
        for host in self._fleet.hosts.values():
            code = host.program.ended()
            if code is None or host.is_down or host.program.expected_end:
                continue
            words = host.program.last_words()
            if READY not in host.program.said() and self._striker.were_away(host.program.started):
                # It came while the database or the server was away: whoever starts it tries again.
                self._journal.count("starts in vain")
                self._journal.note(host.name, f"could not start, and tries again\n{words}")
                host.program.start()
                continue
            self.exits.append(f"{host.name} exited with {code}: {words.rpartition(chr(10))[2]}")
            self._journal.note(host.name, f"EXITED BY ITSELF with {code}\n{words}")
            host.program.start()


def digest(path: Path) -> str:
    """The hash of a file's bytes; empty if it is gone."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""
