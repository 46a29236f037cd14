"""The child as a process: what it may see, when it ends, and what its end means."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from watching import children, is_alive, wait_until_gone

from intermission.errors import EnvironmentFault, MediaError, TaskError
from intermission.media import Limits, MediaInfo, frames, probe
from intermission.media.child_client import ChildClient
from intermission.media.request import Request
from intermission.media.sniff import MOV


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ChildClient]]:
    """A conversation whose child runs the given code instead of ours."""
    real = subprocess.Popen
    opened: list[ChildClient] = []

    def converse(code: str) -> ChildClient:
        def popen(argv: list[str], **kwargs: object) -> object:
            assert argv[1:] == ["-I", "-m", "intermission.media.child"]
            return real([argv[0], "-I", "-c", code], **kwargs)  # pyright: ignore

        monkeypatch.setattr("subprocess.Popen", popen)
        request = Request("probe", os.getpid(), -1, MOV, Limits())
        opened.append(ChildClient(request, "video.mp4"))
        return opened[-1]

    yield converse
    for each in opened:
        each.__exit__(None, None, None)


def heard(child: ChildClient, within_s: float = 10) -> dict[str, object]:
    return child.listen(time.monotonic() + within_s)


def test_the_child_sees_no_credentials(
    scripted: Callable[[str], ChildClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    child = scripted("import json, os; print(json.dumps({'env': dict(os.environ)}))")
    env = heard(child)["env"]
    assert isinstance(env, dict)
    assert set(env) - {"LC_CTYPE"} == {"PATH", "LANG"}


def test_the_child_holds_no_descriptor_it_was_not_given(
    scripted: Callable[[str], ChildClient], tmp_path: Path
) -> None:
    with (tmp_path / "other").open("w") as other:
        os.set_inheritable(other.fileno(), True)
        child = scripted("import json, os; print(json.dumps({'fds': os.listdir('/proc/self/fd')}))")
        assert heard(child)["fds"] == ["0", "1", "2", "3"], "3 is the listing itself"


def test_a_request_comes_through_a_pipe_that_cannot_be_written_to(
    scripted: Callable[[str], ChildClient],
) -> None:
    """Other users of the machine can read the arguments of a process."""
    child = scripted(
        "import fcntl, json, os, stat, sys; request = json.load(sys.stdin)\n"
        "print(json.dumps({'arguments': sys.argv[1:], 'task': request['task'],\n"
        "    'is_pipe': stat.S_ISFIFO(os.fstat(0).st_mode),\n"
        "    'mode': fcntl.fcntl(0, fcntl.F_GETFL) & os.O_ACCMODE}))"
    )
    assert heard(child) == {
        "arguments": [],
        "task": "probe",
        "is_pipe": True,
        "mode": os.O_RDONLY,
    }


def test_the_child_stays_in_the_group_of_its_caller(
    scripted: Callable[[str], ChildClient],
) -> None:
    child = scripted("import json, os; print(json.dumps({'group': os.getpgrp()}))")
    assert heard(child)["group"] == os.getpgrp()


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("import os; os.abort()", MediaError, r"crashed the decoder \(SIGABRT\)"),
        ("import os; os.kill(os.getpid(), 11)", MediaError, r"crashed the decoder \(SIGSEGV\)"),
        ("import os; os.kill(os.getpid(), 24)", MediaError, "the CPU time limit"),
        ("import os; os.kill(os.getpid(), 9)", TaskError, r"killed from outside \(signal 9\)"),
        ("raise SystemExit('no av here')", EnvironmentFault, "status 1: no av here"),
        ("print('hello')", MediaError, "invalid answer"),
        ("print('[1]')", MediaError, "invalid answer"),
        ("print('x' * 5_000_000)", MediaError, "invalid answer"),
        ("print('{\"refused\": 7}')", MediaError, "invalid answer"),
        ('print(\'{"limit": "memory"}\')', MediaError, "more memory .* limit of 4096 MiB"),
    ],
)
def test_every_end_of_a_child_has_its_error(
    scripted: Callable[[str], ChildClient], code: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        heard(scripted(code))
    assert isinstance(caught.value, MediaError) or getattr(caught.value, "retryable", False)


def test_a_child_that_says_nothing_is_ended(scripted: Callable[[str], ChildClient]) -> None:
    child = scripted("import time; time.sleep(60)")
    with pytest.raises(MediaError, match="the wall time limit"):
        heard(child, within_s=0.05)


def test_a_talkative_child_cannot_block_itself(scripted: Callable[[str], ChildClient]) -> None:
    code = "import sys; sys.stderr.write('x' * 1_000_000); print('{}')"
    assert heard(scripted(code)) == {}


def test_nothing_is_left_behind(video: Path) -> None:
    before = children()
    probe(video)
    with pytest.raises(MediaError):
        probe(video, limits=Limits(wall_s=0.02))
    coming = frames(video, [0, 500, 1000])
    next(coming)
    assert len(children()) == len(before) + 1
    coming.close()  # type: ignore[attr-defined]
    assert children() == before


def test_the_child_dies_with_its_parent(video: Path) -> None:
    code = (
        "import os, sys, time; from intermission.media import frames\n"
        "frames = frames(sys.argv[1], [0] * 10_000); next(frames)\n"
        "print(open(f'/proc/self/task/{os.getpid()}/children').read(), flush=True)\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(video)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    os.kill(child, signal.SIGSTOP)  # so that it cannot end of its own accord
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until_gone(child)


def test_a_worker_with_many_open_files_can_still_listen(video: Path) -> None:
    code = (
        "import os, resource, sys; from intermission.media import probe\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2000), hard))\n"
        "kept = [os.open('/dev/null', os.O_RDONLY) for _ in range(1100)]\n"
        "print(probe(sys.argv[1]).container)"
    )
    argv = [sys.executable, "-c", code, str(video)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("mov\n", "")


@pytest.mark.parametrize("change", [{"width": "64"}, {"frames": 1.5}, {"more": 1}])
def test_a_description_of_another_form_is_not_believed(video: Path, change: dict) -> None:
    told = asdict(probe(video))
    assert MediaInfo.from_json(told) == probe(video)
    told["video"][0].update(change)
    with pytest.raises((TypeError, ValueError)):
        MediaInfo.from_json(told)


def test_an_order_survives_the_journey() -> None:
    request = Request("frames", 7, 3, MOV, Limits(streams=2), at_ms=(1, 2))
    assert Request.from_json(request.to_json()) == request
    assert json.loads(request.to_json())["task"] == "frames"
