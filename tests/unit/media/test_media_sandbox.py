"""The sandbox really denies: each test runs a process that locks itself in and then tries."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = """
import ctypes, json, os, platform, socket, struct, subprocess, threading
from intermission.media import sandbox

libc = ctypes.CDLL(None, use_errno=True)
parent = os.pidfd_open(os.getppid())
siginfo = struct.pack("=iiiiii", 0, 0, -1, 0, os.getpid(), os.getuid()) + bytes(104)
clone_args = struct.pack("=11Q", 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)

def call(x86_64, aarch64, *arguments):
    number = x86_64 if platform.machine() == "x86_64" else aarch64
    done = libc.syscall(number, *arguments)
    if done < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return done

"""
WORKS_ONLY_IN_C = ("vfork",)
"""Where the call returns twice into one frame of the interpreter."""
ATTEMPTS = {
    "open": "open({path!r})",
    "create": "open({path!r} + '.new', 'w')",
    "list": "os.listdir('/')",
    "remove": "os.unlink({path!r})",
    "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "unix": "socket.socket(socket.AF_UNIX)",
    "program": "os.execv('/bin/true', ['true'])",
    "signal": "os.kill(os.getppid(), 0)",
    "thread signal": "call(234, 131, os.getppid(), os.getppid(), 0)",
    "signal by thread id": "call(200, 130, os.getppid(), 0)",
    "queued signal": "call(129, 138, os.getppid(), 0, siginfo)",
    "queued thread signal": "call(297, 240, os.getppid(), os.getppid(), 0, siginfo)",
    "signal by descriptor": "call(424, 424, parent, 0, None, 0)",
    "fork": "os.fork() or os._exit(0)",
    "vfork": "call(58, None)",
    "clone": "call(56, 220, 17, 0, 0, 0, 0) or os._exit(0)",
    "clone3": "call(435, 435, clone_args, 88) or os._exit(0)",
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
    if name not in ("remove", "program", *WORKS_ONLY_IN_C):
        assert tried(attempt, "pass") == "done", "the attempt itself works"
    assert tried(attempt, "sandbox.lock_in()") in ("1", "13", "38")
    assert secret.exists()


def test_what_was_open_stays_usable(tmp_path: Path, landlock: int) -> None:
    (tmp_path / "input").write_text("content")
    path = str(tmp_path / "input")
    assert run(f"f = open({path!r}); sandbox.lock_in(); print(f.read())") == "content"


CALLS = [name for name, attempt in ATTEMPTS.items() if "call(" in attempt or name == "fork"]


@pytest.mark.parametrize("name", CALLS)
def test_signals_and_new_processes_are_refused_without_landlock_too(name: str) -> None:
    if name == "vfork" and platform.machine() != "x86_64":
        pytest.skip("this machine has no such call")
    alone = "libc.prctl(38, 1, 0, 0, 0); assert sandbox._seccomp()"
    assert tried(ATTEMPTS[name], alone) in ("1", "38")


def test_threads_start_and_a_process_may_abort_itself() -> None:
    threads = "[threading.Thread(target=print, args=('run',), daemon=True) for _ in range(4)]"
    started = f"ts = {threads}; [t.start() for t in ts]; [t.join() for t in ts]"
    assert run(f"sandbox.lock_in(); {started}").split() == ["run"] * 4
    died = subprocess.run(
        [sys.executable, "-I", "-c", PRELUDE + "sandbox.lock_in(); os.abort()"], timeout=30
    )
    assert died.returncode == -signal.SIGABRT, "so that a crash is known for what it is"


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
