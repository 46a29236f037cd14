"""An older ledger put back under a worker that lives: fences repeat, and nothing is harmed."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from command_line import PIPELINES, Cli, until

from servers.postgres import PostgresServer, programs


class File:
    """A ledger in a SQLite file."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "ledger.sqlite")
        self._copy = folder / "backup.sqlite"

    def back_up(self) -> None:
        connection = apsw.Connection(self.url)
        connection.execute(f"VACUUM INTO '{self._copy}'")
        connection.close()

    def restore(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(self.url + suffix).unlink(missing_ok=True)
        shutil.copy(self._copy, self.url)


class Database:
    """A ledger in PostgreSQL."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self._copy = folder / "ledger.sql"

    def back_up(self) -> None:
        self._run("pg_dump", "--schema=intermission", "--clean", "--if-exists")

    def restore(self) -> None:
        self._run("psql", "--single-transaction", "--quiet", "--set=ON_ERROR_STOP=1")

    def _run(self, program: str, *options: str) -> None:
        argv = [str(programs() / program), *options, f"--file={self._copy}", self.url]
        subprocess.run(argv, check=True, capture_output=True, timeout=180)


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, cli: Cli) -> File | Database:
    if request.param == "sqlite":
        return File(cli.folder)
    make: Callable[..., PostgresServer] = request.getfixturevalue("postgres_server")
    return Database(cli.folder, make().url)


@pytest.mark.slow
def test_a_worker_from_before_a_restore_does_no_harm(cli: Cli, ledger: File | Database) -> None:
    cli.env["INTERMISSION_LEDGER"] = ledger.url
    source = cli.source()
    cli("submit", f"{PIPELINES}:gated", source)
    ledger.back_up()
    first = cli.start("worker")
    cli.wait_for_call("waiting", times=2)  # under fences of which the copy knows nothing
    ledger.restore()
    second = cli.start("worker")
    cli.wait_for_call("waiting", times=4)  # the same tasks, under the same fences
    cli.open_gate()
    until(lambda: [one["state"] for one in cli("ls", "--json").json["jobs"]] == ["done"])
    for worker in (first, second):
        worker.send_signal(signal.SIGTERM)
        cli.end(worker)
    assert cli.calls()["gather"] == 1
    again = cli.run("gated", source, "--json", env={"INTERMISSION_LEDGER": ""}).json
    assert (again["executed"], again["reused"]) == (0, 5)
    workspace = cli.workspace(source)
    assert len([path for path in workspace.glob("receipts/*/*") if path.is_file()]) == 5
    assert not list(workspace.glob("quarantine/*"))
