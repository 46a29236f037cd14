"""The clocks the engine and the ledgers read, so that a simulator can turn them."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time, injected."""

    def now_ms(self) -> int:
        """UTC wall-clock milliseconds: for people. It may jump either way."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back and mean the same to every process of this machine."""
        ...


class SystemClock:
    """The machine's clocks. CLOCK_BOOTTIME also counts while the machine is suspended."""

    _SHARED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.clock_gettime(self._SHARED)
