"""Many processes on one ledger while its server is restarted: every task once, nothing lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from executing import Executions

from servers.postgres import PostgresServer

PROCESSES = 8
TASKS_EACH = int(os.environ.get("INTERMISSION_TEST_TASKS_EACH", "250"))
RESTARTS = (signal.SIGKILL, signal.SIGINT, signal.SIGKILL)


def test_every_task_once_though_the_server_restarts(
    tmp_path: Path, postgres_server: Callable[..., PostgresServer]
) -> None:
    server = postgres_server()
    executions = Executions(server.url, PROCESSES * TASKS_EACH, tmp_path / "executed")
    with executions.by(PROCESSES):
        for n, how in enumerate(RESTARTS, start=1):
            executions.wait_for(n / (len(RESTARTS) + 1))
            server.stop(how)
            server.start()
    executions.check_each_once()
