"""Waiting for files and pipes, as many as a process may open."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any


def readable(files: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
    """The files that have something to read or are at their end; none once the time is up.

    Unlike `select()`, it takes descriptors above 1,023, which a busy worker has.
    """
    poll = select.poll()
    numbers = [file if isinstance(file, int) else file.fileno() for file in files]
    for number in numbers:
        poll.register(number, select.POLLIN)
    ready = {number for number, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
    return [file for file, number in zip(files, numbers, strict=True) if number in ready]
