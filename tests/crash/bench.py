"""One source on disk with everything a crash test asks about it: outputs, receipts, journal."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import work
from launcher import PATIENCE_S, RUNNER, Launcher, children, describe, kill, until

WORKSPACE = ".intermission"


@dataclass
class Run:
    """A started run, and what it said so far."""

    launcher: Launcher
    pid: int
    out: Path

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Its exit status. A run that does not end is killed and fails the test."""
        status = self.launcher.wait(self.pid, within_s)
        if status is None:
            processes = [describe(pid) for pid in self.launcher.marked()]
            self.launcher.end_all()
            raise AssertionError(f"no end within {within_s:g} s: {self.said()} {processes}")
        return status

    def ended_within(self, within_s: float) -> bool:
        return self.launcher.wait(self.pid, within_s) is not None

    def kill(self) -> None:
        kill(self.pid)

    def reapers(self) -> list[int]:
        """The second reaper and, below it, the one that forks slots."""
        second = children(self.pid)[:1]
        return [*second, *(one for pid in second for one in children(pid)[:1])]

    def slots(self) -> list[int]:
        """The reaper's children, without what orphans they left to it."""
        found = [pid for reaper in self.reapers()[1:] for pid in children(reaper)]
        return [pid for pid in found if RUNNER.name in describe(pid)]

    def said(self) -> list[dict[str, Any]]:
        """Every line it wrote. Anything that is no JSON is kept as a line of its own."""
        if not self.out.exists():
            return []
        return [_parse(line) for line in self.out.read_text().splitlines()]

    def last(self, key: str) -> dict[str, Any]:
        """The last line that has this field; empty when there is none."""
        return next((line for line in reversed(self.said()) if key in line), {})


def _parse(line: str) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError:
        return {"stray": line}


@dataclass
class Bench:
    """A source with its workspace, and the settings it is run with."""

    launcher: Launcher
    folder: Path
    settings: dict[str, Any] = field(default_factory=lambda: {"slots": 4})
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    pipeline: str = "crash"
    env: dict[str, str] = field(default_factory=dict[str, str])
    text: bytes = b"some bytes that everything is made of"
    runs: int = 0
    made: bool = True
    """Whether to make the source; otherwise what is to be looked at is there already."""

    def __post_init__(self) -> None:
        if not self.made:
            return
        self.media.mkdir(parents=True, exist_ok=True)
        if not self.source.exists():
            self.source.write_bytes(self.text)

    @property
    def media(self) -> Path:
        """What a user sees; the journal and what runs say are kept outside of it."""
        return self.folder / "media"

    @property
    def source(self) -> Path:
        return self.media / "source.txt"

    @property
    def workspace(self) -> Path:
        return self.media / WORKSPACE / self.source.name

    @property
    def ledger(self) -> Path:
        return self.workspace / "ledger.sqlite"

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def output(self) -> Path:
        return self.media / self.pipeline / self.source.stem / "joined.bin"

    def order(self, **more: Any) -> dict[str, Any]:
        self.runs += 1
        settings = {"lost_max": work.TIRELESS} | self.settings | more.pop("settings", {})
        env = {work.JOURNAL: str(self.journal)} | self.env | more.pop("env", {})
        return {
            "sources": [str(self.source)],
            "settings": settings,
            "params": self.params,
            "pipeline": self.pipeline,
            "env": env,
            "out": str(self.folder / f"run-{self.runs}.jsonl"),
        } | more

    def start(self, **more: Any) -> Run:
        order = self.order(**more)
        return Run(self.launcher, self.launcher.start(order), Path(order["out"]))

    def run(self, within_s: float = PATIENCE_S, **more: Any) -> Run:
        """A run that must end well."""
        run = self.start(**more)
        status = run.wait(within_s)
        assert status == 0, (status, run.said())
        return run

    def run_cold(self, env: Mapping[str, str]) -> tuple[int, Run]:
        """A run in a fresh process under this environment, and how it ended."""
        order = self.order(env=dict(env))
        process = self.launcher.start_cold(order)
        status = process.wait(PATIENCE_S)
        return status, Run(self.launcher, process.pid, Path(order["out"]))

    def executions(self) -> list[str]:
        """`step/key` of every execution so far, in order."""
        if not self.journal.exists():
            return []
        return [line.split()[0] for line in self.journal.read_text().splitlines()]

    def receipts(self) -> set[str]:
        """`step/key` of every task that has a receipt now."""
        folder = self.workspace / "receipts"
        return {f"{path.parent.name}/{path.stem}" for path in folder.glob("*/*.json")}

    def again(self, since: int = 0) -> Counter[str]:
        """Tasks that were executed since a place in the journal."""
        return Counter(self.executions()[since:])

    def tasks(self) -> int:
        return 2 * self.params.get("count", 29) + 2

    def discard(self) -> None:
        """Remove a bench that told its tale; hundreds of them are a burden to whoever cleans up."""
        shutil.rmtree(self.folder)

    def hold(self, *numbers: int) -> Path:
        """Make these pieces wait in their step until `let_go`."""
        folder = self.folder / "hold"
        folder.mkdir(exist_ok=True)
        for no in numbers:
            (folder / str(no)).touch()
        self.env[work.HOLD] = str(folder)
        return folder

    def let_go(self, *numbers: int) -> None:
        for no in numbers:
            (self.folder / "hold" / str(no)).unlink()

    def wait_for_executions(self, count: int) -> None:
        until(lambda: len(self.executions()) >= count, f"{count} executions")

    def assert_right(self) -> None:
        """The output is what an undisturbed run makes, and every execution was worth a receipt."""
        assert self.output.read_bytes() == self.expected
        assert set(self.executions()) <= self.receipts()

    @property
    def expected(self) -> bytes:
        """What an undisturbed run makes of the source, computed without Intermission."""
        text = self.source.read_bytes()
        if self.pipeline == "solo":
            return sha256(text).digest() * self.params.get("blocks", 40)
        if self.pipeline in ("thrice", "once"):
            numbers = range(self.params.get("count", 3))
            return b"".join(sha256(text + str(no).encode()).digest() for no in numbers)
        return joined(text, self.params.get("count", 29))


def joined(text: bytes, count: int) -> bytes:
    out = b""
    for no in range(count):
        piece = sha256(text + str(no).encode()).digest() * 40
        out += piece + f"\n{sha256(piece).hexdigest()}\n".encode()
    return out
