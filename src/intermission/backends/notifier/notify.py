"""A notifier over PostgreSQL: LISTEN and NOTIFY on one channel.

The ledger notifies by itself whenever tasks become claimable, in the transaction that makes them
so; `notify` is for those who know of work in another way. Listening takes a connection of its own,
because a pooled one would not be there when the notice comes, and nobody would be told. So the
notifier tests itself: now and then it sends itself a notice over another connection. If that never
arrives, as behind PgBouncer in transaction mode, it says so once and keeps trying.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Collection
from importlib.util import find_spec
from math import inf
from random import uniform
from typing import TYPE_CHECKING

from intermission.backends.notifier.breaker import Breaker
from intermission.backends.notifier.local import LocalNotifier
from intermission.backends.notifier.notifying_thread import NotifyingThread
from intermission.errors import EnvironmentFault

if TYPE_CHECKING:
    from psycopg import Connection

CHANNEL = "intermission"
PROBE_EVERY_S = 30.0
PROBE_WITHIN_S = 5.0
BACKOFF_S = (0.1, 10.0)
"""Before the first attempt to reconnect, and at most."""
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
        sends: bool = True,
        probe_every_s: float = PROBE_EVERY_S,
        probe_within_s: float = PROBE_WITHIN_S,
    ) -> None:
        """Without `sends` `notify` does nothing, because the ledger has notified already."""
        if find_spec("psycopg") is None:
            raise EnvironmentFault(
                "expected the package psycopg, which reaches PostgreSQL, found it missing.",
                remedy="Install it: pip install 'intermission[postgres]'",
            )
        self._url = url
        self._sends = sends
        self._probe_every_s = probe_every_s
        self._probe_within_s = probe_within_s
        self._sender: Connection | None = None
        self._notify_breaker = Breaker("notifying through PostgreSQL")
        self._notifying = NotifyingThread(self._notify_breaker, self._send, self._hang_up)
        self._listen_breaker = Breaker("listening to the database")
        self._near = LocalNotifier(notified=False)
        self._stop = LocalNotifier(notified=False)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def failures(self) -> int:
        return self._notify_breaker.failures + self._listen_breaker.failures

    def notify(self, priority: int = 0) -> None:
        if self._sends:
            self._notifying.notify(priority)

    def fileno(self) -> int:
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="notifier-notify", daemon=True)
            self._thread.start()
        return self._near.fileno()

    def clear(self) -> None:
        self._near.clear()

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._stop.notify()
        self._notifying.close()
        if self._thread is None:
            self._stop.close()
        else:
            self._thread.join(CLOSE_S)
        self._near.close()

    def _connect(self) -> Connection:
        import psycopg

        return psycopg.connect(
            self._url,
            autocommit=True,
            prepare_threshold=None,  # a pooler may give each statement another session
            connect_timeout=_CONNECT_TIMEOUT_S,
            application_name="intermission notifier",
        )

    def _send(self, levels: Collection[int]) -> None:
        """Notices have no order among them: one stands for all."""
        import psycopg

        if self._sender is not None:
            try:
                self._sender.execute("SELECT pg_notify(%s, '')", (CHANNEL,))
                return
            except psycopg.OperationalError:  # most likely a restart since the last notice
                self._hang_up()
        self._sender = self._connect()
        self._sender.execute("SELECT pg_notify(%s, '')", (CHANNEL,))

    def _hang_up(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def _run(self) -> None:
        """Listen until the notifier is closed, whatever happens to the connection."""
        while not self._closed.is_set():
            try:
                with self._connect() as connection:
                    self._attend(connection)
            except Exception as e:  # nothing may depend on a notifier, so nothing may end it
                self._listen_breaker.failed(e)
                first_s, most_s = BACKOFF_S
                delay_s = min(most_s, first_s * 2 ** min(self._listen_breaker.in_a_row - 1, 16))
                self._closed.wait(delay_s * uniform(0.5, 1.0))
        self._stop.close()

    def _attend(self, connection: Connection) -> None:
        """Pass notices on until the notifier is closed, or notices do not arrive."""
        from psycopg.sql import SQL, Identifier

        # A channel of its own, so that probes wake nobody else.
        own = f"{CHANNEL}_{os.urandom(8).hex()}"
        both = SQL("LISTEN {}; LISTEN {}")  # in one message: a pooler cannot tear them apart
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
                    self._listen_breaker.succeeded()
                else:
                    self._near.notify()

    def _probe(self, channel: str) -> None:
        """Over a connection of its own: one that listens would be told even through a pooler.

        It is not kept, because a fleet has many workers and a database few connections.
        """
        with self._connect() as connection:
            connection.execute("SELECT pg_notify(%s, '')", (channel,))
