"""Talking to a server that nothing depends on: try again, say once that it is away.

Pauses between attempts grow to some seconds and differ, because every process of a fleet lost the
server at the same moment. It must never let an exception out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from random import uniform

PAUSE_S = 0.1
PAUSE_MAX_S = 10.0
log = logging.getLogger(__name__)


class ServerOutage:
    """How one conversation with a server is doing, from the first failure to the next success."""

    def __init__(
        self,
        what: str,
        *,
        meanwhile: str = "Workers find work by polling until it works.",
        pause_max_s: float = PAUSE_MAX_S,
    ) -> None:
        """`what` begins a sentence ("notifying through Redis"); `meanwhile` is the next one."""
        self.failures = 0
        """Since the start."""
        self._what = what
        self._meanwhile = meanwhile
        self._pause_max_s = pause_max_s
        self._in_a_row = 0

    def keep_trying(self, work: Callable[[], None], stop: threading.Event) -> None:
        """Call `work` until it returns. Whatever it raises is followed by a pause."""
        while True:
            try:
                return work()
            except Exception as e:  # nothing depends on this server, so nothing may fail by it
                if stop.is_set():
                    return
                self._failed(e)
            pause_s = min(self._pause_max_s, PAUSE_S * 2 ** min(self._in_a_row - 1, 16))
            if stop.wait(pause_s * uniform(0.5, 1.0)):
                return

    def succeeded(self) -> None:
        """The server answered: an outage is over."""
        if self._in_a_row:
            log.info("%s works again.", self._what)
        self._in_a_row = 0

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self._in_a_row += 1
        if self._in_a_row == 1:
            reason = " ".join(str(error).split()).rstrip(".")
            log.warning("%s failed: %s. %s", self._what, reason, self._meanwhile)
