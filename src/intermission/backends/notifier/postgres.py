"""A notifier over PostgreSQL: the ledger's NOTIFY, and LISTEN on its channel.

The ledger notifies by itself whenever tasks become claimable, in the transaction that makes them
so. Listening takes its own connection, because a pooled one would not be there when the notice
comes, and nobody would be told. So the notifier tests itself: now and then it sends itself a notice
over another connection. If that never arrives, as behind PgBouncer in transaction mode, it says so
once and keeps trying.
"""

from __future__ import annotations

import os
import select
import threading
import time
from importlib.util import find_spec
from math import inf
from typing import TYPE_CHECKING

from intermission.backends.notifier.local import LocalNotifier
from intermission.backends.server_outage import ServerOutage
from intermission.errors import EnvironmentFault

if TYPE_CHECKING:
    from psycopg import Connection

CHANNEL = "intermission"
PROBE_EVERY_S = 30.0
PROBE_WITHIN_S = 5.0
CLOSE_S = 2.0
_CONNECT_TIMEOUT_S = 5


class NotDelivered(Exception):
    """The database took LISTEN, and does not pass notices on."""

    def __init__(self, within_s: float) -> None:
        super().__init__(
            f"expected its own notice within {within_s:g} s, and none came; a pooler in "
            "transaction mode does that: give a ledger URL that leads to the database itself"
        )


class PostgresNotifier:
    """Every listener of a database is told of every notice."""

    def __init__(
        self,
        url: str,
        *,
        probe_every_s: float = PROBE_EVERY_S,
        probe_within_s: float = PROBE_WITHIN_S,
    ) -> None:
        if find_spec("psycopg") is None:
            raise EnvironmentFault(
                "expected the package psycopg, which reaches PostgreSQL, found it missing.",
                remedy="Install it: pip install 'intermission[postgres]'",
            )
        self._url = url
        self._probe_every_s = probe_every_s
        self._probe_within_s = probe_within_s
        self._listening = ServerOutage("listening to the database")
        self._near = LocalNotifier(notified=False)
        self._stop = LocalNotifier(notified=False)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def failures(self) -> int:
        return self._listening.failures

    def notify(self) -> None:
        """The ledger's own transaction has notified by now."""

    def fileno(self) -> int:
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="listening", daemon=True)
            self._thread.start()
        return self._near.fileno()

    def clear(self) -> None:
        self._near.clear()

    def close(self) -> None:
        self._closed.set()
        self._stop.notify()
        if self._thread is None:
            self._stop.close()
        else:
            self._thread.join(CLOSE_S)
        self._near.close()

    def _run(self) -> None:
        self._listening.keep_trying(self._listen, self._closed)
        self._stop.close()

    def _connect(self) -> Connection:
        import psycopg

        return psycopg.connect(
            self._url,
            autocommit=True,
            prepare_threshold=None,  # a pooler may give each statement another session
            connect_timeout=_CONNECT_TIMEOUT_S,
            application_name="intermission notifier",
        )

    def _listen(self) -> None:
        """Pass notices on until the notifier is closed, or notices do not arrive."""
        from psycopg.sql import SQL, Identifier

        # A channel that nobody else listens to, so that probes wake nobody else.
        own = f"{CHANNEL}_{os.urandom(8).hex()}"
        both = SQL("LISTEN {}; LISTEN {}")  # in one message: a pooler cannot tear them apart
        with self._connect() as connection:
            connection.execute(both.format(Identifier(CHANNEL), Identifier(own)))
            self._near.notify()
            poll = select.poll()  # `select` fails in a process that has a thousand files open
            poll.register(connection, select.POLLIN)
            poll.register(self._stop, select.POLLIN)
            probe_at_s, notice_by_s = 0.0, inf
            while not self._closed.is_set():
                now_s = time.monotonic()
                if now_s >= notice_by_s:
                    raise NotDelivered(self._probe_within_s)
                if now_s >= probe_at_s:
                    self._probe(own)
                    probe_at_s = now_s + self._probe_every_s
                    notice_by_s = min(notice_by_s, time.monotonic() + self._probe_within_s)
                wait_s = max(0.0, min(probe_at_s, notice_by_s) - time.monotonic())
                poll.poll(wait_s * 1000)
                for notice in connection.notifies(timeout=0):
                    if notice.channel == own:
                        notice_by_s = inf
                        self._listening.succeeded()
                    else:
                        self._near.notify()

    def _probe(self, channel: str) -> None:
        """Over another connection: one that listens would be told even through a pooler.

        It is not kept, because a fleet has many workers and a database few connections.
        """
        with self._connect() as connection:
            connection.execute("SELECT pg_notify(%s, '')", (channel,))
