"""Becomes another program that cannot outlive its parent: `python -I -S launch.py PID ARGV...`.

A program we did not write cannot be asked to die with its parent; it inherits that wish from
the process it replaces. Run by its path, without site packages: it starts in ten milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, program, *rest = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent_pid):
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Python ignores these, and what is ignored stays so in the program that follows.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execv(program, [program, *rest])


if __name__ == "__main__":
    main()
