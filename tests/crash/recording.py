"""Recording everything a run writes and syncs, by strace, as operations of the disk model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import Bench
from launcher import PATIENCE_S, state, until

from intermission.testing.power import (
    Create,
    Folder,
    Link,
    Operation,
    Remove,
    Rename,
    Sync,
    Truncate,
    Write,
)

CALLS = "openat,write,pwrite64,fsync,fdatasync,ftruncate,link,rename,unlink,mkdir,rmdir"
OTHERS = "?linkat,?renameat,?renameat2,?unlinkat,?mkdirat,?writev,?pwritev,?pwritev2,?fallocate"
"""Calls that would write past the parser: their appearance below the root is an error."""

_UNFINISHED = re.compile(r"^(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_CALL = re.compile(r"^(\d+) +(\w+)\((.*)\) += (\S+)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD = re.compile(r"^(\d+)<([^>]*)>")


@dataclass(frozen=True)
class Mark:
    """A line of the run's own report, and how many operations were complete before it."""

    at: int
    line: bytes


@dataclass
class Recording:
    """The operations below a root, in the order in which they were completed."""

    root: str
    operations: list[Operation] = field(default_factory=list[Operation])
    marks: list[Mark] = field(default_factory=list[Mark])
    begins: int = 0
    """The number of operations after which the power may fail."""
    _known: set[str] = field(default_factory=set[str])
    _offsets: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def add(self, pid: str, name: str, arguments: str, result: str, began: int) -> None:
        if result.startswith("-"):
            return
        strings = [_bytes(text) for text in _STRING.findall(arguments)]
        if name in ("openat", "link", "rename", "unlink", "mkdir", "rmdir"):
            paths = [os.fsdecode(text) for text in strings]
            if self._inside(paths[0]):
                self._change_names(pid, name, arguments, result, paths)
            return
        match = _FD.match(arguments)
        assert match is not None, arguments
        fd, path = match[1], os.fsdecode(_bytes(match[2]))
        if fd == "1" and name == "write":
            self.marks.append(Mark(len(self.operations), strings[0]))
        elif self._inside(path) and path in self._known | {self.root}:
            self._change_contents(pid, name, fd, path, arguments, strings, began)

    def _inside(self, path: str) -> bool:
        # SQLite's shared memory is made anew by whoever opens the ledger first.
        return f"{path}/".startswith(f"{self.root}/") and not path.endswith("-shm")

    def _change_names(
        self, pid: str, name: str, arguments: str, result: str, paths: list[str]
    ) -> None:
        path = paths[0]
        match name:
            case "openat":
                if "O_CREAT" in arguments and path not in self._known:
                    self.put(Create(path), added=path)
                elif "O_TRUNC" in arguments:
                    self.put(Truncate(path, 0))
                self._offsets[pid, result.partition("<")[0]] = 0
            case "mkdir":
                self.put(Folder(path), added=path)
            case "link":
                self.put(Link(path, paths[1]), added=paths[1])
            case "rename":
                self.put(Rename(path, paths[1]), added=paths[1], removed=path)
            case _:
                self.put(Remove(path), removed=path)

    def _change_contents(
        self,
        pid: str,
        name: str,
        fd: str,
        path: str,
        arguments: str,
        strings: list[bytes],
        began: int,
    ) -> None:
        match name:
            case "fsync" | "fdatasync":
                self.put(Sync(path, began))
            case "ftruncate":
                self.put(Truncate(path, int(arguments.rpartition(", ")[2])))
            case "pwrite64":
                self.put(Write(path, int(arguments.rpartition(", ")[2]), strings[0]))
            case "write":
                offset = self._offsets[pid, fd]
                self.put(Write(path, offset, strings[0]))
                self._offsets[pid, fd] = offset + len(strings[0])
            case _:
                raise AssertionError(f"{name} of {path} is not understood")

    def put(self, operation: Operation, *, added: str = "", removed: str = "") -> None:
        self._known.discard(removed)
        if added:
            self._known.add(added)
        self.operations.append(operation)


def _bytes(text: str) -> bytes:
    """What strace wrote with every byte in hexadecimal."""
    return bytes.fromhex(text.replace("\\x", ""))


def begin(bench: Bench) -> Recording:
    """A record that starts with the source, safely on its disk."""
    source = str(bench.source)
    recording = Recording(str(bench.media))
    recording.put(Create(source), added=source)
    recording.put(Write(source, 0, bench.source.read_bytes()))
    recording.put(Sync(source, 2))
    recording.put(Sync(str(bench.media), 3))
    recording.begins = len(recording.operations)
    return recording


def record(recording: Recording, bench: Bench, strace: str, status: int = 0, **order: Any) -> None:
    """Run a bench to its end under strace, with all its processes, and add what it does."""
    run = bench.start(stop="start", tell=True, **order)
    until(lambda: state(run.pid) == "T", "the run to stop itself")
    log = bench.folder / f"recording-{bench.runs}"
    command = [strace, "-f", "-y", "-xx", "-s", "100000000", "-o", str(log)]
    command += ["-e", f"trace={CALLS},{OTHERS}", "-e", "signal=none", "-p", str(run.pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        assert tracer.stderr is not None
        assert b"attached" in tracer.stderr.readline()
        os.kill(run.pid, signal.SIGCONT)
        assert run.wait() == status, run.said()
        tracer.wait(PATIENCE_S)
    finally:
        tracer.kill()
        tracer.communicate()
    _replay_log(log, recording)


def _replay_log(log: Path, recording: Recording) -> None:
    started: dict[str, tuple[str, int]] = {}
    for line in _lines(log):
        if match := _UNFINISHED.match(line):
            started[match[1]] = (f"{match[1]} {match[2]}({match[3]}", len(recording.operations))
            continue
        began = len(recording.operations)
        if match := _RESUMED.match(line):
            head, began = started.pop(match[1])
            line = f"{head}{match[3]}"
        if match := _CALL.match(line):
            recording.add(match[1], match[2], match[3], match[4], began)


def _lines(log: Path) -> Iterator[str]:
    with log.open(errors="strict") as file:
        for line in file:
            yield line.rstrip("\n")
