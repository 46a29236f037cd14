"""Being asked to stop: signals that start a drain."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def drain_on_signals(drain: Callable[[str], None]) -> Generator[int, None, None]:
    """SIGTERM and SIGINT drain. Yields a file descriptor that a signal makes readable."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = {
        number: signal.signal(number, lambda n, _: drain(signal.Signals(n).name))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    old = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield read
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)
