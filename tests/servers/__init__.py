"""Servers that tests start for themselves, and a proxy that makes them misbehave."""

from __future__ import annotations

import ctypes
import signal
import socket

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def free_port() -> int:
    """A port that nobody listens to at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def die_with_parent() -> None:
    """Run in a server's process: the kernel ends it when the tests are killed and cannot."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
