"""Crashing on purpose at a named fault point, in another process or in this one.

The points and their meanings are in `intermission.telemetry`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from intermission.telemetry import CRASH_VARIABLE, listen, parse_point


class Crashed(BaseException):
    """The simulated death of a worker; not an Exception, so that nothing recovers from it."""


def crash_at(name: str, nth: int = 1) -> dict[str, str]:
    """The environment in which a subprocess is killed when it passes `name` for the nth time.

    Its children inherit it, and each process counts for itself.
    """
    text = f"{name}:{nth}"
    parse_point(text)
    return {CRASH_VARIABLE: text}


@contextmanager
def crashing(name: str, nth: int = 1) -> Iterator[None]:
    """Raise `Crashed` when this process passes `name` for the nth time inside the block."""
    parse_point(f"{name}:{nth}")
    passed = 0

    def crash(passing: str) -> None:
        nonlocal passed
        if passing == name:
            passed += 1
            if passed == nth:
                raise Crashed(f"{name}:{nth}")

    with listen(crash):
        yield
