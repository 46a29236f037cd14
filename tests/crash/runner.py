"""The process under test: one run of a pipeline, started cold or forked from a warm server.

Cold: `runner.py ORDER`. Warm: `runner.py` reads one order per line, forks a process for each
that has everything imported already, and says on standard output who was started and who
ended. A run writes what it knows as JSON lines, and ends as the command line would: 0 done,
1 failed, 4 environment, 75 interrupted, 130 interrupted early. A traceback is never an answer: 70.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import apsw  # noqa: F401  what the engine loads late is loaded here before the fork

from intermission.backends.executor import slot
from intermission.errors import EnvironmentFault, IntermissionError
from intermission.model import JobState, TaskState
from intermission.operations import App, SourceRun, run
from intermission.settings import load_settings

sys.path.insert(0, str(Path(__file__).parent))
import patches
import work

CRASHED = 70


class Reporter:
    """What a run says, as JSON lines on standard output."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.runs: list[SourceRun] = []
        self.told: set[str] = set()

    def found(self, sources: int) -> None:
        """Each is said when it is opened."""

    def opened(self, run: SourceRun) -> None:
        self.runs.append(run)
        say(opened=str(run.path), reused=run.reused)
        if self.order.get("stop") == "opened":
            os.kill(os.getpid(), signal.SIGSTOP)

    def tick(self) -> None:
        """Say which tasks are done, where a test asked to hear it."""
        if not self.order.get("tell"):
            return
        for one in self.runs:
            if one.ledger is not None and one.job is not None:
                for row in one.ledger.tasks(one.job.key, states=[TaskState.DONE]):
                    if row.key not in self.told:
                        self.told.add(row.key)
                        say(done=f"{row.step}/{row.key}")

    def draining(self, reason: str) -> None:
        say(draining=reason)

    def closed(self, run: SourceRun) -> None:
        self.tick()
        say(
            closed=str(run.path),
            state=run.row and run.row.state,
            reused=run.reused,
            executed=run.stats.executed.total(),
            adopted=run.stats.adopted.total(),
            failures=run.stats.failures.total(),
            last_failure=run.stats.last_failure,
            outputs=[str(path) for path in run.outputs],
            error=run.error and str(run.error),
        )


def say(**fields: Any) -> None:
    """One line in one write: a line is there whole or not at all."""
    with open(1, "wb", buffering=0, closefd=False) as out:
        out.write((json.dumps(fields) + "\n").encode())


def run_once(order: dict[str, Any]) -> int:
    try:
        if order.get("patch"):
            name, *arguments = order["patch"]
            getattr(patches, name)(*arguments)
        if order.get("stop") == "start":
            os.kill(os.getpid(), signal.SIGSTOP)
        settings = load_settings(order.get("settings", {})).settings
        if order.get("do") == "rebuild":
            say(rebuilt=App(settings).rebuild(Path(order["sources"][0])))
            return 0
        pipeline = f"{work.__file__}:{order.get('pipeline', 'crash')}"
        params = order.get("params", {})
        report = run(App(settings), pipeline, order["sources"], params, Reporter(order))
    except EnvironmentFault as e:
        say(fault=e.message, remedy=e.remedy)
        return 4
    except IntermissionError as e:
        say(fault=e.message, remedy=e.remedy)
        return 1
    except KeyboardInterrupt:  # before the worker has handlers of its own
        return 130
    except BaseException:
        say(traceback=traceback.format_exc())
        return CRASHED
    if report.interrupted:
        return 75
    return 0 if all(one.row and one.row.state is JobState.DONE for one in report.sources) else 1


def become(order: dict[str, Any]) -> NoReturn:
    """Turn a fork of the server into a run of its own session, with its own output."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    os.environ.update(order.get("env", {}))
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, stream in ((null, 0), (out, 1), (out, 2)):
        os.dup2(fd, stream)
    os.closerange(3, 64)
    os._exit(run_once(order))


def serve() -> None:
    """Fork a run per order until standard input ends."""
    assert slot.main  # imported for the same reason as apsw
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    orders = b""
    while True:
        ready, _, _ = select.select([0, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            for pid, status in _reaped():
                say(ended=pid, status=os.waitstatus_to_exitcode(status))
        if 0 in ready:
            more = os.read(0, 65536)
            if not more:
                return
            *lines, orders = (orders + more).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    become(json.loads(line))
                say(started=pid)


def _reaped() -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, status))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        become(json.loads(sys.argv[1]))
    serve()
