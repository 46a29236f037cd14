"""Waiting for what a child writes, until a moment and no longer."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import IO


def wait_readable(pipes: Sequence[IO[bytes]], deadline: float) -> list[IO[bytes]]:
    """Those with something to read, or at their end; none once the deadline has passed."""
    # Not select(): it fails for descriptors above 1023, which a busy worker has.
    poll = select.poll()
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    left_s = deadline - time.monotonic()
    ready = {fd for fd, _ in poll.poll(left_s * 1000)} if left_s > 0 else set()
    return [pipe for pipe in pipes if pipe.fileno() in ready]
