"""Starting, watching and killing runs, and finding every process they left behind.

All processes of a launcher carry its mark in their environment, and so does whatever their
steps start, in whatever session: a leftover cannot hide.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

T = TypeVar("T")

MARK = "CRASH_MARK"
RUNNER = Path(__file__).parent / "runner.py"
PATIENCE_S = 180.0
"""How long anything may take before a test calls it stuck: never how long it should take."""
LINGER_S = 1.0
"""How long a process may outlive its worker."""


def until(condition: Callable[[], T], what: str, within_s: float = PATIENCE_S) -> T:
    """The first true answer of a condition, asked again and again; fails when none comes."""
    deadline = time.monotonic() + within_s
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"waited {within_s:g} s for {what}"
        select.select([], [], [], 0.002)


class Launcher:
    """A warm server that forks runs, and the exit statuses of what it forked."""

    def __init__(self) -> None:
        self.mark = uuid4().hex
        self.environ = {**os.environ, MARK: self.mark}
        for name in [name for name in self.environ if name.startswith("INTERMISSION_")]:
            del self.environ[name]
        self._server = subprocess.Popen(
            [sys.executable, str(RUNNER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environ,
        )
        self._heard = b""
        self._statuses: dict[int, int] = {}
        self._started: list[int] = []

    @property
    def alive(self) -> bool:
        return self._server.poll() is None

    def start(self, order: Mapping[str, Any]) -> int:
        """Fork a run; its process id, which is the supervisor's."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(order).encode() + b"\n")
        self._server.stdin.flush()
        until(lambda: self._listen(0.1) or self._started, "a run to start")
        return self._started.pop()

    def start_cold(self, order: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """A run in a process of its own, that reads its environment when it starts."""
        environ = {**self.environ, **order.get("env", {})}
        return subprocess.Popen([sys.executable, str(RUNNER), json.dumps(order)], env=environ)

    def wait(self, pid: int, within_s: float) -> int | None:
        """How a run ended, negative for a signal; None when it has not within this time."""
        deadline = time.monotonic() + within_s
        while pid not in self._statuses:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            self._listen(left_s)
        return self._statuses[pid]

    def _listen(self, within_s: float) -> None:
        assert self._server.stdout is not None
        fd = self._server.stdout.fileno()
        if not select.select([fd], [], [], within_s)[0]:
            return
        more = os.read(fd, 65536)
        assert more, "the server of the crash tests died"
        *lines, self._heard = (self._heard + more).split(b"\n")
        for line in map(json.loads, lines):
            if "started" in line:
                self._started.append(line["started"])
                # Numbers are used again, and this one may have been another run's.
                self._statuses.pop(line["started"], None)
            else:
                self._statuses[line["ended"]] = line["status"]

    def marked(self) -> list[int]:
        """Every living process that any run of this launcher started, directly or not."""
        mark = f"{MARK}={self.mark}".encode()
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self._server.pid:
                try:
                    if mark in (entry / "environ").read_bytes() and not _is_zombie(entry):
                        found.append(int(entry.name))
                except OSError:
                    continue  # it ended while we looked, or is not ours to look at
        return found

    def assert_nobody_left(self, within_s: float = LINGER_S) -> None:
        """Every process of every run is gone within a second.

        Not counted is who waits for a disk: the kernel lets nobody die in the middle of that.
        """
        deadline = time.monotonic() + within_s
        while left := self.marked():
            if time.monotonic() > deadline and {state(pid) for pid in left} - {"D", ""}:
                lines = [describe(pid) for pid in left]
                self.end_all()
                raise AssertionError(f"left {within_s:g} s after their worker: {lines}")
            select.select([], [], [], 0.002)

    def end_all(self) -> None:
        """Kill what a failed test left, so that the next one starts clean."""
        for pid in self.marked():
            kill(pid)
        until(lambda: not self.marked(), "leftovers to end")

    def close(self) -> None:
        self.end_all()
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(PATIENCE_S)
        self._server.stdout.close()


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> bool:
    """Send a signal; whether there was anybody to get it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def children(pid: int) -> list[int]:
    """The child processes of a process; none once it is gone."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    return [pid, *(below for child in children(pid) for below in descendants(child))]


def state(pid: int) -> str:
    """One letter: R running, S sleeping, T stopped, Z zombie; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def describe(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return f"{pid} (gone meanwhile)"
    return f"{pid} state {stat[0]} parent {stat[1]} session {stat[3]}: {command}"


def _is_zombie(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
