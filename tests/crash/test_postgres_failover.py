"""The server dies for good and a standby takes its place: work goes on, every task once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psycopg
from executing import DEADLINE_S, Executions
from launcher import until

from servers.postgres import PostgresServer

PROCESSES = 4
TASKS = 400


def one(url: str, sql: bytes) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(sql).fetchone()
    return row and row[0]


def test_work_goes_on_where_a_standby_is_promoted(
    tmp_path: Path, postgres_server: Callable[..., PostgresServer]
) -> None:
    """What was answered was on the standby before, because replication is synchronous."""
    first = postgres_server()
    second = postgres_server(of=first)
    with psycopg.connect(first.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")
    state = b"SELECT sync_state FROM pg_stat_replication"
    until(lambda: one(first.url, state) == "sync", "replication is synchronous", DEADLINE_S)
    ports = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
    url = f"postgresql://postgres@{ports}/postgres?target_session_attrs=read-write"
    executions = Executions(url, TASKS, tmp_path / "executed")
    with executions.by(PROCESSES):
        executions.wait_for(0.4)
        first.stop(signal.SIGKILL)
        assert one(second.url, b"SELECT pg_promote()") is True
    executions.check_each_once()
