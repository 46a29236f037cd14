"""The ffmpeg program, for what PyAV cannot do: finding it, running it, following its progress.

It is given argument lists, never a shell line, and an environment without credentials. It leads
a process group of its own, which is killed with it, and the kernel kills it with its caller.
Its exit status says only that it ended: whoever calls it compares the output with the plan.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from intermission.errors import EnvironmentFault, MediaError, TaskError
from intermission.media import launch
from intermission.media.pipes import wait_readable
from intermission.media.refusal import RAISE_LIMIT

_STDERR_TAIL_BYTES = 4000
_STDERR_LINES_SHOWN = 3
_OURS = ("-nostdin", "-hide_banner", "-nostats", "-loglevel", "error", "-progress", "pipe:1")

OnProgress = Callable[[int], object]
"""Called with the time in ms that the output has reached."""


def find_ffmpeg() -> str:
    """Path of the program: the system's, else the one that imageio-ffmpeg brings."""
    found = shutil.which("ffmpeg")
    if found is None:
        with suppress(ImportError, RuntimeError):
            found = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
    if found is None:
        raise EnvironmentFault(
            "this needs the ffmpeg program, which is not installed.",
            remedy="Install ffmpeg with the system's packages, or: "
            "pip install 'intermission[media]'.",
        )
    return str(Path(found).absolute())


def run_ffmpeg(
    arguments: Sequence[str],
    *,
    wall_s: float,
    on_progress: OnProgress | None = None,
    program: str | None = None,
) -> None:
    """Run ffmpeg with these arguments until it ends.

    Raises MediaError, with the end of what it wrote to standard error, when it fails or takes
    longer than `wall_s`; EnvironmentFault when the disk is full, even if ffmpeg thinks nothing
    of it; TaskError when somebody else killed it.
    """
    argv = [program or find_ffmpeg(), *_OURS, *arguments]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
        process_group=0,
    )
    try:
        stderr = _follow(process, time.monotonic() + wall_s, on_progress)
        status = process.wait()
    except TimeoutError as e:
        raise MediaError(
            f"ffmpeg took longer than the {wall_s:g} s it may (the wall time limit): "
            f"{_shown(argv)}.",
            remedy=RAISE_LIMIT,
        ) from e
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    if -status in (signal.SIGKILL, signal.SIGTERM):
        raise TaskError(f"ffmpeg was killed from outside (signal {-status}): {_shown(argv)}.")
    if b"No space left on device" in stderr:
        raise EnvironmentFault(
            f"ffmpeg could not write its output: {_tail(stderr)}.",
            remedy="Free some space and run the same command again; progress is saved.",
        )
    if status:
        raise MediaError(f"ffmpeg failed with status {status}: {_tail(stderr)}: {_shown(argv)}.")


def _follow(
    process: subprocess.Popen[bytes], deadline: float, on_progress: OnProgress | None
) -> bytes:
    """Read until ffmpeg has closed both of its outputs; the end of its standard error."""
    open_pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
    unread = stderr = b""
    while open_pipes:
        ready = wait_readable(open_pipes, deadline)
        if not ready:
            raise TimeoutError
        for pipe in ready:
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                open_pipes.remove(pipe)
            elif pipe is process.stderr:
                stderr = (stderr + data)[-_STDERR_TAIL_BYTES:]
            else:
                *lines, unread = (unread + data).split(b"\n")
                _report(lines, on_progress)
    return stderr


def _report(lines: list[bytes], on_progress: OnProgress | None) -> None:
    for line in lines:
        key, _, value = line.partition(b"=")
        # It says N/A until it knows; "out_time_us" is in microseconds, as its name says.
        if on_progress is not None and key == b"out_time_us" and value.strip().isdigit():
            on_progress(int(value) // 1000)


def _tail(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return " | ".join(lines[-_STDERR_LINES_SHOWN:]) or "it said nothing"


def _shown(argv: Sequence[str]) -> str:
    return " ".join(argv)
