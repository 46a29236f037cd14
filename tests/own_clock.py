"""A machine's own clock, for tests of what several machines agree on."""

from __future__ import annotations

from intermission.testing.clock import FakeClock


class OwnClock:
    """Its monotonic time began when it liked, and its wall clock is not to be asked."""

    def __init__(self, world: FakeClock, offset_s: float) -> None:
        self._world = world
        self._offset_s = offset_s

    def monotonic_s(self) -> float:
        return self._world.monotonic_s() + self._offset_s

    def now_ms(self) -> int:
        raise AssertionError("a machine's wall clock decided something")
