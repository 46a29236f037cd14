"""The command as a program among others: terminals, pipes, start-up."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest
from command_line import PIPELINES, TIMEOUT_S, Cli

HEAVY = {"pydantic", "apsw", "rich", "intermission.operations", "intermission.model"}
COMMANDS = ["run", "plan", "ls", "status", "watch", "logs", "inspect", "why", "retry", "cancel"]
COMMANDS += ["finish", "rebuild", "gc", "doctor", "config"]


def on_a_terminal(cli: Cli, *args: object, env: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code of a command, and all that a terminal of 100 columns got to see."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "intermission", *map(str, args)],
        cwd=cli.folder,
        env={**cli.env, "TERM": "xterm-256color", **(env or {})},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        if not select.select([ours], [], [], 0.1)[0]:
            continue
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        seen += data
    os.close(ours)
    return process.wait(timeout=TIMEOUT_S), seen.decode()


def test_a_terminal_gets_bars_with_reused_work_shaded(cli: Cli) -> None:
    source = cli.source()
    code, first = on_a_terminal(cli, "run", f"{PIPELINES}:letters", source)
    assert code == 0
    assert "████" in first
    assert "▒" not in first
    assert "\x1b[" in first
    code, second = on_a_terminal(cli, "run", f"{PIPELINES}:letters", source)
    assert code == 0
    assert "▒▒▒▒" in second
    assert "█" not in second
    assert "3 reused" in second
    assert "reused 5 of 5 tasks" in second


def test_a_terminal_counts_every_file_that_was_found(cli: Cli) -> None:
    sources = [cli.source(f"{name}.txt") for name in "abc"]
    code, seen = on_a_terminal(cli, "run", f"{PIPELINES}:letters", *sources)
    assert code == 0
    assert "0 of 3 files done" in seen
    assert "3 of 3 files done" in seen


def test_no_color_is_obeyed(cli: Cli) -> None:
    source = cli.source()
    args = ("run", f"{PIPELINES}:letters", source)
    _, coloured = on_a_terminal(cli, *args)
    _, plain = on_a_terminal(cli, *args, env={"NO_COLOR": "1"})
    assert "\x1b[32m" in coloured
    assert "\x1b[36" not in plain
    assert "\x1b[2;36" not in plain
    assert "▒▒▒▒" in plain


def test_a_dumb_terminal_gets_lines(cli: Cli) -> None:
    source = cli.source()
    _, seen = on_a_terminal(cli, "run", f"{PIPELINES}:letters", source, env={"TERM": "dumb"})
    assert "\x1b[" not in seen
    assert "a.txt: done" in seen


def test_a_pipe_gets_plain_lines(cli: Cli) -> None:
    source = cli.source()
    ended = cli.run("letters", source)
    first, *_, second, last = ended.err.splitlines()  # a slow machine says more in between
    assert (first, second) == ("a.txt: started", "a.txt: done")
    assert last.startswith("reused 0 of 5 tasks")
    assert "\x1b" not in ended.err


@pytest.mark.parametrize("args", [("config", "show"), ("run", f"{PIPELINES}:letters", "a.txt")])
def test_a_reader_that_leaves_is_not_mentioned(cli: Cli, args: tuple[str, ...]) -> None:
    cli.source()
    process = cli.start(*args)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=TIMEOUT_S) == 0
    assert "Broken" not in err
    assert "Error" not in err


def test_a_run_goes_on_when_nobody_listens_any_more(cli: Cli) -> None:
    source = cli.source(text="abXdef")
    process = cli.begin("gated", source, "--jsonl")
    cli.wait_for_call("waiting", times=2)
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    cli.open_gate()
    assert process.wait(timeout=TIMEOUT_S) == 0
    assert (cli.folder / "gated/a/gathered.txt").read_text() == "abXdef"


def test_the_exit_code_does_not_depend_on_who_listens(cli: Cli) -> None:
    cli.source("good.txt", "ab")
    cli.source("bad.txt", "XX")
    process = cli.begin("failing", "good.txt", "bad.txt", "--json")
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    assert process.wait(timeout=TIMEOUT_S) == 3


def test_watching_ends_with_its_reader(cli: Cli) -> None:
    source = cli.source()
    process = cli.begin("gated", source)
    cli.wait_for_call("waiting", times=2)
    watcher = cli.start("watch", source, "--jsonl")
    for stream in (watcher.stdout, watcher.stderr):
        assert stream is not None
        stream.close()
    watcher.wait(timeout=TIMEOUT_S)
    assert process.poll() is None, "the job itself goes on"
    cli.open_gate()
    assert cli.end(process).code == 0


def test_help_names_every_command_and_loads_nothing_heavy(cli: Cli) -> None:
    code = (
        "import sys, json, atexit\n"
        "from intermission.cli import main\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        "sys.argv = ['intermission', '--help']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=cli.env,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    loaded = set(json.loads(done.stderr))
    assert "intermission.cli" in loaded
    assert not loaded & HEAVY
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout


def test_version(cli: Cli) -> None:
    from intermission import __version__

    assert cli("--version").out == f"intermission {__version__}\n"


def test_shell_completion(cli: Cli) -> None:
    asked = {"_INTERMISSION_COMPLETE": "complete_bash", "COMP_WORDS": "intermission re"}
    commands = cli(env={**asked, "COMP_CWORD": "1"}).out.split()
    assert commands == ["retry", "rebuild", "register", "resume"]


def test_a_bug_is_called_one(cli: Cli) -> None:
    code = (
        "import sys, intermission.settings as s\n"
        "s.load_settings = lambda flags: 1 // 0\n"
        "from intermission.cli import main\n"
        "sys.argv = ['intermission', 'ls', *sys.argv[1:]]\n"
        "main()\n"
    )
    for flags, shown in (([], False), (["-v"], True)):
        done = subprocess.run(
            [sys.executable, "-c", code, *flags],
            env=cli.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 1
        assert "this is a bug in Intermission: ZeroDivisionError" in done.stderr
        assert ("Traceback" in done.stderr) is shown
