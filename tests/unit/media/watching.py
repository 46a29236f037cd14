"""Watching processes come and go, by what the kernel says of them."""

from __future__ import annotations

import os
import time
from pathlib import Path


def children() -> list[int]:
    """The processes that the main thread of this one has started and not yet reaped."""
    mine = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return [int(pid) for pid in mine.read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pid: int, within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.005)
