"""When a server that fails is worth another try, and what is said about it meanwhile.

One breaker for each direction, notifying and listening: the one may work without the other, and
its success must not be taken for the other's.
"""

from __future__ import annotations

import logging
import threading
import time
from random import uniform

FAILURES_MAX = 3
OPEN_S = 10.0
log = logging.getLogger(__name__)


class Breaker:
    """Closed until some failures in a row; then open for a while; then one try decides."""

    def __init__(
        self,
        what: str,
        *,
        open_s: float = OPEN_S,
        meanwhile: str = "Workers go on by polling until it works.",
    ) -> None:
        """`what` begins a sentence ("notifying through Redis"); `meanwhile` is the next one."""
        self.failures = 0
        """Since the start."""
        self.in_a_row = 0
        self._what = what
        self._meanwhile = meanwhile
        self._open_s = open_s
        self._try_at_s = 0.0
        self._lock = threading.Lock()

    def allows(self) -> bool:
        """Whether to try now. While open, one caller at a time is let through to find out."""
        with self._lock:
            now_s = time.monotonic()
            if self.in_a_row < FAILURES_MAX:
                return True
            if now_s < self._try_at_s:
                return False
            self._open(now_s)
            return True

    @property
    def wait_s(self) -> float:
        """How long until a try is allowed."""
        is_open = self.in_a_row >= FAILURES_MAX
        return max(0.0, self._try_at_s - time.monotonic()) if is_open else 0.0

    def skipped(self) -> None:
        """Count what was not tried because the breaker is open."""
        with self._lock:
            self.failures += 1

    def failed(self, why: object) -> None:
        """Count a try that went wrong; the first of an outage is logged."""
        with self._lock:
            self.failures += 1
            self.in_a_row += 1
            self._open(time.monotonic())
            if self.in_a_row > 1:
                return
        reason = " ".join(str(why).split()).rstrip(".")
        log.warning("%s failed: %s. %s", self._what, reason, self._meanwhile)

    def succeeded(self) -> None:
        """Close it again."""
        with self._lock:
            outage, self.in_a_row = self.in_a_row, 0
        if outage:
            log.info("%s works again.", self._what)

    def _open(self, now_s: float) -> None:
        # Not all at once: every worker of a fleet lost the server at the same moment.
        self._try_at_s = now_s + self._open_s * uniform(0.8, 1.2)
