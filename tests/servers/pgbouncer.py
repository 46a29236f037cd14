"""PgBouncer in front of the tests' PostgreSQL server, in transaction mode: the fixture."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from intermission.backends.ledger.postgres.connection import close_pools
from servers.postgres import Databases, die_with_parent, free_port

_START_S = 20.0
# Fewer connections to the server than clients have: a transaction gets whichever is free.
_SETTINGS = """\
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
logfile = {folder}/log
"""


@pytest.fixture(scope="session")
def pgbouncer(require: Callable[[str], str], postgres: Databases) -> Iterator[Callable[[str], str]]:
    """Makes the address of a database lead through PgBouncer."""
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    given = {"user": "postgres", **conninfo_to_dict(postgres.url)}
    server = {k: v for k, v in given.items() if k in ("host", "port", "user", "password")}
    settings = folder / "settings.ini"
    settings.write_text(_SETTINGS.format(server=make_conninfo(**server), port=port, folder=folder))
    argv = [require("pgbouncer"), "-q", str(settings)]
    if os.geteuid() == 0:  # it refuses to run as root
        shutil.chown(folder, "nobody")
        argv += ["-u", "nobody"]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)

    def through(url: str) -> str:
        return make_conninfo(url, host="127.0.0.1", port=port, sslmode="disable")

    try:
        _wait_for(process, through(postgres.url), folder / "log")
        yield through
    finally:
        close_pools()
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with suppress(psycopg.OperationalError):
            psycopg.connect(url, connect_timeout=2).close()
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    process.kill()
    said = log.read_text(errors="replace") if log.exists() else "nothing"
    pytest.fail(f"PgBouncer did not start within {_START_S:g} s; it said: {said}")
