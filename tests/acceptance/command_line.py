"""The real command in a process of its own, as a person or a script would use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PIPELINES = Path(__file__).with_name("pipelines.py")
TIMEOUT_S = 200.0
"""How long anything may take, on a machine that is busy with something else."""


@dataclass(frozen=True)
class Ended:
    """A command that came to its end."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def events(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Cli:
    """`intermission`, run in a folder of its own with nobody's settings."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict[str, str])
    started: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    def __post_init__(self) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("INTERMISSION_")}
        self.env = {
            **inherited,
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": "",
            "COLUMNS": "100",
            "CALLS": str(self.folder / "calls"),
            "GATE": str(self.folder / "gate"),
            "INTERMISSION_SLOTS": "2",
            "INTERMISSION_RETRY_DELAYS_S": "0",
            "INTERMISSION_PIPELINES": str(PIPELINES),
        }

    def __call__(
        self, *args: object, code: int = 0, env: Mapping[str, str] | None = None, **how: Any
    ) -> Ended:
        """Run a command to its end; the test fails unless it exits with `code`."""
        ended = self.end(self.start(*args, env=env, **how))
        assert ended.code == code, f"exit {ended.code}\n{ended.out}\n{ended.err}"
        assert code == 1 or "Traceback" not in ended.err
        return ended

    def start(
        self, *args: object, env: Mapping[str, str] | None = None, **how: Any
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "intermission", *map(str, args)]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            **how,
        )
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[str]) -> Ended:
        out, err = process.communicate(timeout=TIMEOUT_S)
        return Ended(process.returncode, out, err)

    def kill_all(self) -> None:
        """Leave nothing running, however the test ended."""
        for process in self.started:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def run(self, pipeline: str, *args: object, **how: Any) -> Ended:
        return self("run", f"{PIPELINES}:{pipeline}", *args, **how)

    def begin(self, pipeline: str, *args: object, **how: Any) -> subprocess.Popen[str]:
        return self.start("run", f"{PIPELINES}:{pipeline}", *args, **how)

    def source(self, name: str = "a.txt", text: str = "abcdef") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def workspace(self, source: Path) -> Path:
        return source.parent / ".intermission" / source.name

    def calls(self) -> Counter[str]:
        """What steps were executed since the last look, and how often."""
        path = self.folder / "calls"
        found = Counter(path.read_text().splitlines()) if path.exists() else Counter[str]()
        path.unlink(missing_ok=True)
        return found

    def wait_for_call(self, what: str, *, times: int = 1) -> None:
        path = self.folder / "calls"
        until(lambda: path.exists() and path.read_text().splitlines().count(what) >= times)

    def open_gate(self) -> None:
        (self.folder / "gate").touch()


def until(condition: Callable[[], object], *, timeout_s: float = TIMEOUT_S) -> None:
    """Wait for something another process does; the one place where these tests poll."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.01)


def in_sentence(text: str, *words: str) -> None:
    """An error is one line for people: these words, no traceback."""
    lines = [line for line in text.splitlines() if line.startswith("intermission: ")]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    for word in words:
        assert word in lines[0], f"{word!r} is not in {lines[0]!r}"


def shell(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
