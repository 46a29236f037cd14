"""Following one process of a run with strace: its write-side calls, and faults put into them.

A run stops itself at an agreed place, strace attaches, and the run goes on. So the count of a
system call starts there and not with the hundreds that load Python, and a fault hits the call
that it is meant for.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from bench import Bench, Run
from launcher import PATIENCE_S, state, until

import intermission

WRITES = [
    "openat",
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "fsync",
    "fdatasync",
    "link",
    "linkat",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "rmdir",
    "ftruncate",
    "fallocate",
    "utimensat",
    "symlink",
    "symlinkat",
]
"""Every call that changes what is on a disk, and the one that opens what is then changed."""

_PROGRAM = str(Path(intermission.__file__).parent)
_LINE = re.compile(r"^(?P<pid>\d+ +|)(?:<\.\.\. )?(?P<name>\w+)(?:\(| resumed>)(?P<rest>.*)$")


@dataclass(frozen=True)
class Call:
    """The nth call of its name in its thread, as strace counts them."""

    pid: str
    name: str
    nth: int
    text: str

    @property
    def failed(self) -> bool:
        return ") = -1 E" in self.text

    @property
    def opens_for_writing(self) -> bool:
        return self.name == "openat" and bool(re.search("O_CREAT|O_WRONLY|O_RDWR", self.text))

    def __str__(self) -> str:
        return f"{self.name}:{self.nth}"


@dataclass(frozen=True)
class Traced:
    """A run that was followed to its end."""

    run: Run
    status: int
    log: str

    def calls(self, below: Path) -> list[Call]:
        """Its write-side calls on files below a folder, and on what the program itself reads."""
        counts: Counter[tuple[str, str]] = Counter()
        found: list[Call] = []
        for line in self.log.splitlines():
            match = _LINE.match(line)
            if match is None or "resumed>" in line:
                continue
            pid, name, text = match["pid"].strip(), match["name"], match["rest"]
            counts[pid, name] += 1
            if str(below) in text or _PROGRAM in text:
                found.append(Call(pid, name, counts[pid, name], text))
        return found

    def reached(self, site: Call) -> bool:
        """Whether anybody came as far as this call; SQLite now and then needs a page less."""
        counts: Counter[str] = Counter()
        for line in self.log.splitlines():
            match = _LINE.match(line)
            if match is not None and match["name"] == site.name and "resumed>" not in line:
                counts[match["pid"]] += 1
        return max(counts.values(), default=0) >= site.nth

    @property
    def killed(self) -> bool:
        """Whether somebody died by SIGKILL under strace's eyes."""
        return "+++ killed by SIGKILL +++" in self.log

    @property
    def injected(self) -> int:
        return self.log.count("(INJECTED)")


def follow(bench: Bench, who: str, strace: str, options: Sequence[str] = (), **more: str) -> Traced:
    """Run a bench with its supervisor, or its reaper and slots, under strace."""
    run = bench.start(stop="start" if who == "supervisor" else "opened", **more)
    until(lambda: state(run.pid) in ("T", ""), "the run to stop itself")
    log = bench.folder / f"trace-{bench.runs}"
    # Calls are counted by thread, so a fault for the supervisor must not reach its slots.
    target = ["-p", str(run.pid)]
    if who != "supervisor":
        until(lambda: len(run.reapers()) > 1, "the second reaper")
        target = ["-f", "-p", str(run.reapers()[1])]
    command = [strace, "-y", "-o", str(log), "-e", f"trace={','.join(WRITES)}", *options]
    tracer = subprocess.Popen([*command, *target], stderr=subprocess.PIPE)
    try:
        assert tracer.stderr is not None
        assert b"attached" in tracer.stderr.readline()
        os.kill(run.pid, signal.SIGCONT)
        status = run.wait()
        tracer.wait(PATIENCE_S)
    finally:
        tracer.kill()
        tracer.communicate()
    return Traced(run, status, log.read_text(errors="replace"))


def write_sites(calls: Sequence[Call]) -> list[Call]:
    """The calls at which what is on the disk changes; one that fails anyway changes nothing.

    Of a long row of page writes the first, the middle and the last stand for all: between them
    the disk holds a transaction that is not committed, whichever of them is the last.
    """
    writing = [
        call
        for call in calls
        if not call.failed and (call.name != "openat" or call.opens_for_writing)
    ]
    sites: list[Call] = []
    for name, group in groupby(writing, key=lambda call: call.name):
        row = list(group)
        if name == "pwrite64" and len(row) > 3:
            row = [row[0], row[len(row) // 2], row[-1]]
        sites += row
    return sites
