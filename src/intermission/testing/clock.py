"""A clock that stands still until a test turns it, and the clocks of machines that follow it."""

from __future__ import annotations

from intermission.ports.clock import Clock

START_MS = 1_750_000_000_000
START_S = 100_000.0


class FakeClock(Clock):
    """Both clocks of the port, moved by hand; the wall clock can also jump on its own."""

    def __init__(self) -> None:
        self._passed_s = 0.0
        self._jumped_s = 0.0

    def now_ms(self) -> int:
        return START_MS + round((self._passed_s + self._jumped_s) * 1000)

    def monotonic_s(self) -> float:
        return START_S + self._passed_s

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds})")
        self._passed_s += seconds

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as a person or a time server does."""
        self._jumped_s += seconds


class OwnClock(Clock):
    """A machine's clock: its monotonic time began when it liked, and nobody asks its wall clock."""

    def __init__(self, world: FakeClock, offset_s: float) -> None:
        self._world = world
        self._offset_s = offset_s

    def monotonic_s(self) -> float:
        return self._world.monotonic_s() + self._offset_s

    def now_ms(self) -> int:
        raise AssertionError("a machine's wall clock decided something")
