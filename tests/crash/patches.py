"""Unusual machines, put under a run before it starts; its slots are forked and inherit them."""

from __future__ import annotations

import os
import resource


def halve_writes() -> None:
    """Every write takes half of what it is given, as a full pipe or a signal may cause."""
    write = os.write

    def write_half(fd: int, data: bytes | memoryview) -> int:
        view = memoryview(data)
        return write(fd, view[: max(1, len(view) // 2)])

    os.write = write_half


def limit_file_size(limit_bytes: int) -> None:
    """No file of this run may grow beyond so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
