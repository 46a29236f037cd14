"""Connections to a database: one small pool per process and address, errors that explain.

Owns the pools and says what a driver's error means. It knows nothing of jobs or tasks. A pooler
may stand in between (PgBouncer in transaction mode). Then a connection keeps no state between
transactions: nothing is prepared, no session is configured. No lock outlives a transaction either
way.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from intermission.errors import EnvironmentFault, LedgerError

if TYPE_CHECKING:
    import psycopg
    from psycopg_pool import ConnectionPool

POOL_MAX = 8
SILENCE_S = 120.0
"""How long a statement may take without a byte from the server before the line is given up.

The kernel notices a link that is gone; this is for one that is there and says nothing, such as a
server that hangs, or a pooler whose server is away. No statement of ours takes nearly as long.
"""
_IDLE_MAX_S = 120.0
_PREPARE_AFTER = 2
"""A statement is prepared once it was sent so often: planning one costs more than running it."""
_PLANS = """
SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_sort = off;
"""
"""To plan a statement costs more than to run it, so a plan is kept, whatever the values. It may
have been made while a table was small: then nothing is cheaper than reading and sorting it all.
Every statement that is asked often has an index to go by, in the order it asks for."""
_REPLAN_S = 5.0
"""And it is kept no longer than this, because tables grow."""
_CONNECT_S = 5
# A server that vanished without a word is noticed within a quarter of a minute.
_LINK = {
    "connect_timeout": _CONNECT_S,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,
    "application_name": "intermission",
}
_TRANSIENT = re.compile(
    r"starting up|shutting down|recovery|not yet accepting|too many|slots are reserved|terminating"
)
# Serialization, deadlock, lock not available; connection, resources, operator intervention; a
# standby during a failover; a transaction that sat idle for too long; a session that is another.
_AGAIN = re.compile(r"40001|40P01|55P03|08...|53[0234]..|57P..|25006|25P0[34]|26000|42P05")
# A prepared statement is not there, or is another's: a pooler stands in between after all.
_SHARED_SESSION = re.compile(r"26000|42P05")
# After these, other connections of the pool are no better: the server went away, or is a standby.
_GONE = re.compile(r"08...|57P..|25006")

_pools: dict[str, ConnectionPool[psycopg.Connection[tuple[Any, ...]]]] = {}
_pools_lock = threading.Lock()
_of_the_parent: list[object] = []
_pooled: set[str] = set()
"""Addresses that were found out to lead to a pooler."""


def driver() -> Any:
    """The psycopg package, imported where it is needed first."""
    try:
        import psycopg
        import psycopg_pool  # noqa: F401
    except ImportError as e:
        raise EnvironmentFault(
            f"a ledger in PostgreSQL needs a package that is not installed ({e.name}).",
            remedy="Run: pip install 'intermission[postgres]'",
        ) from e
    return psycopg


def shown(url: str) -> str:
    """An address without its password, for people."""
    parts = urlsplit(url)
    if not parts.scheme:
        return re.sub(r"password\s*=\s*('[^']*'|\S+)", "password=***", url)
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}"


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """One connection outside the pool; what is wrong is said at once."""
    psycopg = driver()
    try:
        return _bounded_class().connect(_conninfo(url), autocommit=True, prepare_threshold=None)
    except psycopg.ProgrammingError as e:
        raise LedgerError(
            f"{shown(url)} is not the address of a database ({_line(e)}).",
            remedy="Write it as postgresql://user:password@host:5432/database.",
        ) from e
    except psycopg.OperationalError as e:
        raise _no_connection(url, e) from e


def _conninfo(url: str) -> str:
    """The address with our defaults for whatever it leaves open."""
    psycopg = driver()
    given = psycopg.conninfo.conninfo_to_dict(url)
    return psycopg.conninfo.make_conninfo(url, **{k: v for k, v in _LINK.items() if k not in given})


@cache
def _bounded_class() -> Any:
    """Connections that wait for an answer, but not for ever."""

    class Bounded(driver().Connection):
        silence_s = SILENCE_S
        planned_s = 0.0
        """When it was last asked to forget its plans."""

        def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
            return super().wait(_bounded(self, gen), *args, **options)

    return Bounded


def _bounded(connection: Any, gen: Any) -> Generator[Any, Any, Any]:
    """What psycopg waits for; it is asked several times a second while nothing is heard."""
    until_s = time.monotonic() + connection.silence_s
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                until_s = time.monotonic() + connection.silence_s
            elif time.monotonic() > until_s:
                connection.pgconn.finish()
                raise driver().OperationalError(f"silent for {connection.silence_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value


class _Unreachable(LedgerError):
    """The database gave no connection, and may give one later."""


def _no_connection(url: str, e: Exception) -> LedgerError:
    reason = _line(e)
    if "FATAL" in reason and not _TRANSIENT.search(reason):
        return LedgerError(
            f"the database {shown(url)} refused the connection: {reason.partition('FATAL: ')[2]}.",
            remedy="Check the user, the password and the database's name in its address.",
        )
    if "resolve host" in reason:
        return LedgerError(
            f"the host of {shown(url)} is not known ({reason}).",
            remedy="Check the host and the port in its address.",
        )
    return _Unreachable(
        f"the database {shown(url)} cannot be reached ({reason}).",
        remedy="Check that it runs and that its host and port are right; then run this again.",
    )


def _line(e: BaseException) -> str:
    """An error's first line, without its full stop."""
    text = str(e).strip() or type(e).__name__
    return " ".join(text.splitlines()[0].split()).rstrip(".")


def pool_of(url: str) -> ConnectionPool[psycopg.Connection[tuple[Any, ...]]]:
    """This process's pool of connections to an address; made when it is first asked for."""
    with _pools_lock:
        if url not in _pools:
            driver()
            from psycopg_pool import ConnectionPool

            # The pool talks of every failed attempt; what matters is raised where it matters.
            logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())
            _pools[url] = ConnectionPool(
                _conninfo(url),
                connection_class=_bounded_class(),
                kwargs={"autocommit": True, "prepare_threshold": None},
                configure=partial(_configure, url),
                min_size=0,
                max_size=POOL_MAX,
                max_idle=_IDLE_MAX_S,
                reconnect_timeout=1.0,
                num_workers=1,
                open=True,
            )
        return _pools[url]


def _configure(url: str, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    from intermission.backends.ledger.postgres.arrays import ArrayDumper

    connection.adapters.register_dumper(list, ArrayDumper)
    bounded: Any = connection
    bounded.silence_s = min(SILENCE_S, _CONNECT_S)  # others wait for a connection meanwhile
    (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
    # A pooler greets with a number of its own making, and gives a session to others as well.
    if pid == connection.info.backend_pid and url not in _pooled:
        connection.execute(_PLANS)
        connection.prepare_threshold = _PREPARE_AFTER


def is_direct(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
    """Whether a connection leads to the server itself, so that a session can keep something."""
    return connection.prepare_threshold is not None


@contextmanager
def borrowed(
    url: str, *, wait_s: float, silence_s: float | None = None
) -> Generator[psycopg.Connection[tuple[Any, ...]], None, None]:
    """A connection of the pool, for one transaction; `silence_s` bounds each of its statements."""
    with pool_of(url).connection(timeout=wait_s) as connection:
        bounded: Any = connection
        bounded.silence_s = SILENCE_S if silence_s is None else silence_s
        if is_direct(connection) and time.monotonic() - bounded.planned_s > _REPLAN_S:
            connection.execute("DISCARD PLANS")
            bounded.planned_s = time.monotonic()
        yield connection


def forget_broken(url: str, e: Any) -> None:
    """After an error that others of the pool would meet too: begin with new connections."""
    psycopg = driver()
    if not is_known(url) or not isinstance(e, psycopg.Error):
        return
    if e.sqlstate is not None and _SHARED_SESSION.fullmatch(e.sqlstate):
        _pooled.add(url)
    elif e.sqlstate is not None and not _GONE.fullmatch(e.sqlstate):
        return
    pool_of(url).drain()


def is_known(url: str) -> bool:
    """Whether this process has had a connection to the address before."""
    with _pools_lock:
        return url in _pools


@atexit.register
def close_pools() -> None:
    """Close every pool of this process."""
    with _pools_lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.close()


def _after_fork() -> None:
    """A child never uses its parent's connections, nor closes them: it keeps them untouched."""
    global _pools_lock
    _of_the_parent.append(dict(_pools))
    _pools.clear()
    _pools_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def can_be_repeated(e: Any) -> bool:
    """Whether an error says nothing against the operation itself, so that it may go better."""
    psycopg = driver()
    from psycopg_pool import PoolClosed, PoolTimeout

    if isinstance(e, PoolTimeout | PoolClosed | _Unreachable):
        return True
    if not isinstance(e, psycopg.Error):
        return False
    if e.sqlstate is None:
        return isinstance(e, psycopg.OperationalError)  # the link broke, nobody said why
    return _AGAIN.fullmatch(e.sqlstate) is not None


@contextmanager
def translated(url: str) -> Generator[None, None, None]:
    """Driver errors as ledger errors, each with what to do about it."""
    psycopg = driver()
    from psycopg_pool import PoolTimeout

    try:
        yield
    except psycopg.errors.DiskFull as e:
        raise LedgerError(
            f"the disk of the database {shown(url)} is full.",
            remedy="Free some space there and run the same command again; progress is saved.",
        ) from e
    except psycopg.errors.InsufficientPrivilege as e:
        raise LedgerError(
            f"the user of {shown(url)} may not do that ({_line(e)}).",
            remedy="Let the user create the schema `intermission`, or own it.",
        ) from e
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as e:
        raise LedgerError(
            f"the ledger in {shown(url)} was removed while it was in use.",
            remedy="Finished tasks are safe in their receipts: submit the jobs again.",
        ) from e
    except (psycopg.OperationalError, PoolTimeout) as e:
        raise LedgerError(
            f"the database {shown(url)} did not answer for too long ({_line(e)}).",
            remedy="Check that it runs and can be reached; then run the same command again; "
            "progress is saved.",
        ) from e
    except (psycopg.Error, UnicodeEncodeError) as e:
        raise LedgerError(f"the ledger in {shown(url)} refused an operation ({_line(e)}).") from e
