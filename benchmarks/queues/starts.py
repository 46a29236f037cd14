"""How a task tells when it started: the time is the task's own, on the clock of this machine."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

PLACE = "BENCH_STARTS"
"""The environment variable with the address to tell."""
_WAIT_S = 30.0


def started(n: int) -> None:
    """Called by a task's code, first of all."""
    at_ns = time.monotonic_ns()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
        mouth.sendto(f"{n} {at_ns}".encode(), os.environ[PLACE])


class Starts:
    """Hears them, one at a time."""

    def __init__(self, folder: Path) -> None:
        path = folder / "starts"
        self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ear.bind(str(path))
        path.chmod(0o777)
        self._ear.settimeout(_WAIT_S)
        os.environ[PLACE] = str(path)

    def of(self, n: int) -> int:
        """When task `n` started, in ns; waits for it."""
        while True:
            told, at_ns = self._ear.recv(100).split()
            if int(told) == n:
                return int(at_ns)
