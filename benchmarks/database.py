"""A PostgreSQL server to measure on, and databases on it that nobody has used."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from judging import require
from psycopg.conninfo import make_conninfo

# What a careful owner of such a server sets; durability as it is by default, and for all alike.
_SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "max_connections": "120",
}


@contextmanager
def serving(url: str | None, folder: Path) -> Iterator[str]:
    """The address of a server: the one given, or that of the tests, on the disk to measure."""
    if url is not None:
        _check(url)
        yield url
        return
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from servers.postgres import PostgresServer

    with tempfile.TemporaryDirectory(dir=folder, prefix=".bench-") as place:
        server = PostgresServer(Path(place), **_SETTINGS)
        server.start()
        try:
            _check(server.url)
            yield server.url
        finally:
            server.stop()


def _check(url: str) -> None:
    with psycopg.connect(url) as connection:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            found = connection.execute(f"SHOW {name}".encode()).fetchone()
            require(found == ("on",), f"{name} is {found}")


@contextmanager
def fresh_database(url: str) -> Iterator[str]:
    """The address of an empty database, which is removed afterwards."""
    name = f"bench_{time.time_ns()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        connection.execute("CHECKPOINT")  # nobody pays for what was written before
        try:
            yield make_url(url, name)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def make_url(url: str, name: str) -> str:
    """The address with another database, as a URL: not everybody takes a connection string."""
    found = psycopg.conninfo.conninfo_to_dict(make_conninfo(url, dbname=name))
    password = f":{found['password']}" if "password" in found else ""
    return f"postgresql://{found['user']}{password}@{found['host']}:{found['port']}/{name}"
