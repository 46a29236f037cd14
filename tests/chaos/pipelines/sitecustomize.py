"""Every host of a run has a name of its own, though all of them are one machine."""

import os
import socket


def _name() -> str:
    return os.environ["CHAOS_HOST"]


if "CHAOS_HOST" in os.environ:
    socket.gethostname = _name
