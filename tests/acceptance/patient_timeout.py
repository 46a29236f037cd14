"""`timeout -s KILL` for the pages: it waits longer where the machine is busy.

A page says "killed after 2.5 s" and means "killed in the middle". On a busy machine a command may
have hardly started by then, and the next one on the page finds nothing to continue. So the command
has some of that time after its first line, however long it took to say it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

LEAST = 0.6
"""How much of the time is left to it after its first line, at least."""


def main(seconds: float, command: list[str]) -> int:
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert child.stdout is not None
    output = child.stdout.fileno()
    deadline_s, has_spoken = time.monotonic() + seconds, False
    while not has_spoken or time.monotonic() < deadline_s:
        if select.select([output], [], [], 0.02)[0]:
            said = os.read(output, 65536)
            if not said:
                return child.wait()
            os.write(1, said)
            if not has_spoken:
                has_spoken = True
                deadline_s = max(deadline_s, time.monotonic() + LEAST * seconds)
    child.kill()
    child.wait()
    os.kill(os.getpid(), signal.SIGKILL)  # as the real one does, so that the shell says "Killed"
    raise AssertionError("this process is dead")


if __name__ == "__main__":
    flags, seconds, command = sys.argv[1:3], sys.argv[3], sys.argv[4:]
    if flags != ["-s", "KILL"]:
        os.execv("/usr/bin/timeout", ["timeout", *sys.argv[1:]])
    sys.exit(main(float(seconds), command))
