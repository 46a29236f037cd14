"""The worker of the examples, which knows nothing of Intermission but its worker API."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import Cli, until

EXAMPLES = Path(__file__).parents[2] / "examples"
WORDCOUNT = f"{EXAMPLES / 'wordcount.py'}:wordcount"
SECRET = "an-admin-secret-for-tests"


@pytest.fixture
def server(cli: Cli) -> Iterator[str]:
    cli.env |= {"INTERMISSION_ADMIN_SECRET": SECRET, "INTERMISSION_LEASE_TTL_S": "4"}
    cli.env |= {"INTERMISSION_RENEW_EVERY_S": "1", "INTERMISSION_CACHE_DIR": "cache"}
    process = cli.start("serve", "--port", 0, "--pipeline", WORDCOUNT)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "listening on" in line, line
    cli.env["INTERMISSION_SERVER"] = line.split()[-1]
    yield cli.env["INTERMISSION_SERVER"]
    process.kill()


class Workers:
    """Processes of the tiny worker, in an interpreter that has no installed package."""

    def __init__(self, cli: Cli, server: str, key: str) -> None:
        self._cli = cli
        self._env = {"INTERMISSION_SERVER": server, "INTERMISSION_SERVER_KEY": key}
        self.started: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-I", "-S", "-u", str(EXAMPLES / "tiny_worker.py")]
        made = subprocess.Popen(
            command,
            env=self._env,
            cwd=self._cli.folder,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(made)
        return made

    def end(self) -> None:
        for one in self.started:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


@pytest.fixture
def workers(cli: Cli, server: str) -> Iterator[Workers]:
    workers = Workers(cli, server, cli("register", "tiny").out.strip())
    yield workers
    workers.end()


def state(cli: Cli) -> str:
    (job,) = cli("ls", "--json").json["jobs"]
    return job["state"]


def test_it_does_a_job_is_killed_and_another_continues(cli: Cli, workers: Workers) -> None:
    lines = [f"words of line {n % 3} and the end\n" for n in range(30)]
    source = cli.source("poem.txt", "".join(lines))
    cli("submit", WORDCOUNT, source, "--every", 1)
    first = workers.start()
    assert first.stdout is not None
    done = [first.stdout.readline() for _ in range(8)]
    assert done[:2] == ["ranges 0 done\n", "count 0 done\n"]
    os.killpg(first.pid, signal.SIGKILL)
    assert state(cli) == "running"
    workers.start()
    until(lambda: state(cli) == "done")
    counts, *_ = (cli.folder / "intermission-data").rglob("counts.json")
    words = Counter(word for line in lines for word in line.split() if word.isalpha())
    assert json.loads(counts.read_text()) == words


def test_it_obeys_a_cancel(cli: Cli, workers: Workers) -> None:
    source = cli.source("poem.txt", "a line\n" * 200)
    (key,) = cli("submit", WORDCOUNT, source, "--every", 1).out.split()
    child = stopped_child(workers.start())
    cli("cancel", key)
    until(lambda: not Path(f"/proc/{child}").exists())
    # It goes on with what somebody wants.
    cli("submit", WORDCOUNT, cli.source("other.txt", "one\ntwo\n"))
    until(lambda: {job["state"] for job in cli("ls", "--json").json["jobs"]} >= {"done"})


def stopped_child(worker: subprocess.Popen[str]) -> int:
    """The process that runs a task, stopped in the middle of it."""
    found: list[int] = []

    def stop() -> bool:
        children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        for child in map(int, children):
            with suppress(ProcessLookupError, FileNotFoundError):
                os.kill(child, signal.SIGSTOP)
                if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                    found.append(child)
        return bool(found)

    until(stop)
    return found[0]
