"""The runner of the ffmpeg program, with scripts in its place and, where it is, with itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from watching import wait_until_gone

from intermission.errors import EnvironmentFault, MediaError, TaskError
from intermission.media import probe
from intermission.media.ffmpeg import find_ffmpeg, run_ffmpeg


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(body: str) -> str:
        path = tmp_path / "ffmpeg"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return str(path)

    return write


def test_progress_is_read_while_it_runs(script: Callable[[str], str]) -> None:
    seen: list[int] = []
    program = script("echo out_time_us=N/A; echo out_time_us=1500000; echo progress=end")
    run_ffmpeg([], wall_s=10, on_progress=seen.append, program=program)
    assert seen == [1500]


def test_arguments_are_passed_as_they_are(script: Callable[[str], str], tmp_path: Path) -> None:
    program = script(f'for each in "$@"; do echo "$each"; done > {tmp_path}/seen')
    run_ffmpeg(["-i", "a b;$(c)"], wall_s=10, program=program)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert seen[-2:] == ["-i", "a b;$(c)"]
    assert "-nostdin" in seen


def test_credentials_stay_here(
    script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    run_ffmpeg([], wall_s=10, program=script(f"env > {tmp_path}/seen"))
    assert "AWS" not in (tmp_path / "seen").read_text()


def test_a_failure_tells_what_ffmpeg_said(script: Callable[[str], str]) -> None:
    program = script("echo 'moov atom not found' >&2; exit 183")
    with pytest.raises(MediaError, match=r"status 183: moov atom not found: .*-i x"):
        run_ffmpeg(["-i", "x"], wall_s=10, program=program)


def test_a_full_disk_is_seen_even_when_ffmpeg_is_content(script: Callable[[str], str]) -> None:
    program = script("echo 'Error writing trailer: No space left on device' >&2")
    with pytest.raises(EnvironmentFault, match="No space left"):
        run_ffmpeg([], wall_s=10, program=program)


def test_what_it_started_ends_with_it_at_the_wall(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    program = script(f"sleep 60 & echo $! > {tmp_path}/pid; wait")
    with pytest.raises(MediaError, match=r"longer than the 0.3 s it may \(the wall time limit\)"):
        run_ffmpeg([], wall_s=0.3, program=program)
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_a_kill_from_outside_is_worth_another_attempt(script: Callable[[str], str]) -> None:
    with pytest.raises(TaskError, match="killed from outside") as caught:
        run_ffmpeg([], wall_s=10, program=script("kill -9 $$"))
    assert caught.value.retryable


def test_it_dies_with_its_caller(script: Callable[[str], str], tmp_path: Path) -> None:
    program = script("echo out_time_us=1000; exec sleep 60")
    code = (
        "import sys; from intermission.media.ffmpeg import run_ffmpeg\n"
        "run_ffmpeg([], wall_s=60, program=sys.argv[1], on_progress=lambda ms: "
        "print(open('/proc/self/task/%d/children' % __import__('os').getpid()).read(), flush=True))"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", code, program], stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout is not None
    pid = int(caller.stdout.readline())
    os.kill(pid, 0)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    caller.stdout.close()
    wait_until_gone(pid)


def test_without_ffmpeg_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(EnvironmentFault, match=r"pip install 'intermission\[media\]'"):
        find_ffmpeg()


def test_the_real_program(film: Path, tmp_path: Path) -> None:
    try:
        find_ffmpeg()
    except EnvironmentFault as e:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{e} On CI nothing may be skipped.")
        pytest.skip(str(e))
    out = tmp_path / "out.mp4"
    seen: list[int] = []
    run_ffmpeg(["-i", str(film), "-t", "1", str(out)], wall_s=60, on_progress=seen.append)
    assert seen
    assert abs(probe(out).duration_ms - 1000) < 90
