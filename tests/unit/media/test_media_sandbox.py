"""The sandbox really denies: each test runs a process that locks itself in and then tries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = "import os, socket, subprocess, json; from intermission.media import sandbox; "
ATTEMPTS = {
    "open": "open({path!r})",
    "create": "open({path!r} + '.new', 'w')",
    "list": "os.listdir('/')",
    "remove": "os.unlink({path!r})",
    "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "unix": "socket.socket(socket.AF_UNIX)",
    "program": "os.execv('/bin/true', ['true'])",
    "signal": "os.kill(os.getppid(), 0)",
    "scheduling": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
}


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-c", PRELUDE + code], capture_output=True, text=True, timeout=30
    )
    assert not done.stderr
    return done.stdout.strip()


def tried(attempt: str, before: str) -> str:
    body = f"{before}\ntry:\n {attempt}\nexcept OSError as e: print(e.errno)\nelse: print('done')"
    return run(body)


@pytest.mark.parametrize("name", ATTEMPTS)
def test_after_the_lock_in_nothing_is_within_reach(
    name: str, tmp_path: Path, landlock: int
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    attempt = ATTEMPTS[name].format(path=str(secret))
    if name not in ("remove", "program"):
        assert tried(attempt, "pass") == "done", "the attempt itself works"
    assert tried(attempt, "sandbox.lock_in()") in ("1", "13")
    assert secret.exists()


def test_what_was_open_stays_usable(tmp_path: Path, landlock: int) -> None:
    (tmp_path / "input").write_text("content")
    path = str(tmp_path / "input")
    assert run(f"f = open({path!r}); sandbox.lock_in(); print(f.read())") == "content"


def test_the_controls_that_hold_are_reported(landlock: int) -> None:
    assert "landlock" in json.loads(run("print(json.dumps(sandbox.lock_in()))"))


def test_limits_hold_and_lower_ones_stay() -> None:
    code = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (9, 9));"
        "sandbox.limit(memory_bytes=1 << 28, cpu_s=5, file_bytes=1000);"
        "print([r.getrlimit(x) for x in (r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_FSIZE, "
        "r.RLIMIT_NOFILE, r.RLIMIT_CORE)])"
    )
    expected = [(1 << 28, 1 << 28), (5, 6), (1000, 1000), (9, 9), (0, 0)]
    assert run(code) == str(expected)
