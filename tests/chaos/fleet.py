"""The fleet: a database, a server and six workers, each a process that can be struck."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from chaos.commands import SECRET, argv, environment, install, run_command
from chaos.journal import Journal
from chaos.schedule import NEWER, OLDER
from chaos.scratch import Scratch
from servers import die_with_parent, free_port
from servers.postgres import PostgresServer

START_S = 120.0
"""How long a program may take to start, on a busy machine."""


@dataclass(frozen=True)
class HostPlan:
    name: str
    release: int
    over_http: bool = False
    lacks: tuple[str, ...] = ()


HOSTS = (
    HostPlan("w1", OLDER),
    HostPlan("w2", OLDER, lacks=("frames",)),
    HostPlan("w3", NEWER),
    HostPlan("w4", NEWER),
    HostPlan("w5", NEWER, over_http=True, lacks=("frames",)),
    HostPlan("w6", OLDER, over_http=True),
)
"""Two releases share the fleet, two workers have no database, a third of them lack a pipeline."""


def until(condition: Callable[[], object], what: str, within_s: float = START_S) -> None:
    """Wait for what another process does."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} did not happen within {within_s:g} s")
        time.sleep(0.1)


def processes(variable: str, value: str) -> list[psutil.Process]:
    """Every living process that has inherited this from the run, whoever its parent is now."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(variable) == value and _lives(process):
                found.append(process)
    return found


def _lives(process: psutil.Process) -> bool:
    return process.status() != psutil.STATUS_ZOMBIE


@dataclass
class Program:
    """One process that is started, struck and started again. Its output goes to a file."""

    name: str
    arguments: Sequence[object]
    env: dict[str, str]
    folder: Path
    output: Path
    process: subprocess.Popen[Any] | None = None
    expected_end: bool = False
    started: float = 0.0
    _said_before: int = 0
    """How much of the output is of processes before this one."""

    def start(self) -> None:
        self.expected_end = False
        self.started = time.time()
        with self.output.open("ab") as stream:
            self._said_before = stream.tell()
            self.process = subprocess.Popen(
                argv(*self.arguments),
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def strike(self, how: signal.Signals) -> None:
        """Send a signal to the process alone."""
        if self.process is not None:
            self.expected_end = self.expected_end or how in (signal.SIGKILL, signal.SIGTERM)
            self.process.send_signal(how)

    def children(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return [] if self.process is None else psutil.Process(self.process.pid).children()
        return []

    def ended(self) -> int | None:
        """Its exit status, if it ended."""
        return None if self.process is None else self.process.poll()

    def said(self) -> str:
        """What the process has written since it was started."""
        return self.output.read_bytes()[self._said_before :].decode(errors="replace")

    def last_words(self, lines: int = 6) -> str:
        return "\n".join(self.said().splitlines()[-lines:])


@dataclass
class Host:
    """A worker with its own scratch, pipelines and faults."""

    plan: HostPlan
    program: Program
    scratch: Scratch
    faults: Path
    is_down: bool = False
    """Struck on purpose, and not started again yet."""

    @property
    def name(self) -> str:
        return self.plan.name

    def processes(self) -> list[psutil.Process]:
        """Known by its faults: another run on this machine has hosts of the same names."""
        return processes("CHAOS_FAULTS", str(self.faults))

    def strike_all(self, how: signal.Signals) -> None:
        """Send a signal to every process of the host, as a machine that stops does."""
        if how is signal.SIGKILL:
            self.program.expected_end = True
            for process in self.processes():  # nobody may see another one die
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGSTOP)
        for process in self.processes():
            with suppress(psutil.Error):
                process.send_signal(how)


class Fleet:
    """All of it, in one folder."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self.folder = folder
        self.media = folder / "media"
        self.store = folder / "store"
        self._journal = journal
        for path in (self.media, self.store, folder / "hosts", folder / "postgres"):
            path.mkdir()
        self.database = PostgresServer(folder / "postgres", max_connections="120")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.clients = {
            release: self._environment(f"client{release}", release) for release in (OLDER, NEWER)
        }
        self.server = self._program(
            "server",
            ["serve", "--port", self.port, "--ledger", self.database.url, "--store", self.store],
            self._environment("server", NEWER) | {"INTERMISSION_ADMIN_SECRET": SECRET},
        )
        self.hosts: dict[str, Host] = {}

    def _environment(self, name: str, release: int, lacks: Sequence[str] = ()) -> dict[str, str]:
        home = self.folder / "hosts" / name / "home"
        home.mkdir(parents=True, exist_ok=True)
        installed = install(self.folder / "hosts" / name / "pipelines", release, lacks)
        return environment(self.folder, installed, host=name, home=home, lacks=lacks)

    def _program(self, name: str, arguments: Sequence[object], env: dict[str, str]) -> Program:
        output = self.folder / "hosts" / name / "output.log"
        return Program(name, arguments, env, self.folder, output)

    def start(self) -> None:
        self.database.start()
        self.server.start()
        until(self.server_answers, "an answer of the server")
        for plan in HOSTS:
            self.hosts[plan.name] = self._host(plan)
            self.hosts[plan.name].program.start()

    def _host(self, plan: HostPlan) -> Host:
        folder = self.folder / "hosts" / plan.name
        scratch = Scratch(folder / "home")
        (folder / "faults").mkdir()
        env = self._environment(plan.name, plan.release, plan.lacks)
        env["INTERMISSION_SCRATCH_MAX_BYTES"] = "8MiB"
        arguments: list[object] = ["worker"]
        if plan.over_http:
            arguments += ["--server", self.url]
            env["INTERMISSION_SERVER_KEY"] = self._register(plan.name)
        else:
            arguments += ["--ledger", self.database.url]
        return Host(plan, self._program(plan.name, arguments, env), scratch, folder / "faults")

    def _register(self, name: str) -> str:
        env = self.clients[NEWER] | {"INTERMISSION_ADMIN_SECRET": SECRET}
        done = run_command(env, self.folder, "register", name, "--server", self.url)
        if done.code != 0:
            raise RuntimeError(f"register {name} ended with {done.code}: {done.err}")
        return done.out.strip()

    def server_answers(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        return False

    def ask(self, path: str, **query: Any) -> httpx.Response:
        """What the public API answers; the server is up."""
        headers = {"Authorization": f"Bearer {SECRET}"}
        answer = httpx.get(f"{self.url}/api/v1{path}", params=query, headers=headers, timeout=180)
        answer.raise_for_status()
        return answer

    def left_over(self) -> list[psutil.Process]:
        return [one for one in processes("CHAOS_RUN", self.folder.name) if one.pid != os.getpid()]

    def stop(self) -> None:
        """End everything that is still there, however the run went."""
        for process in self.left_over():
            with suppress(psutil.Error):
                process.kill()
        self.database.stop(signal.SIGQUIT)
        for host in self.hosts.values():
            host.scratch.close()
