"""Reads and changes over connections that may break at any moment.

A change is one transaction. Its first statement writes the change's own token, so that after a
broken COMMIT the same change, made again, learns whether it was made: it is then answered as it
would have been, and never made twice. No transaction is open while anybody else works.

Every message to the server and back costs as much as a short statement. So a change begins with
its first statement, if that does not need the time, and statements whose rows nobody wants wait
for the next one, or for the COMMIT.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from itertools import takewhile
from random import uniform
from typing import Any, TypeVar

from intermission.backends.ledger.postgres.connection import (
    borrowed,
    can_be_repeated,
    connect,
    driver,
    forget_broken,
    is_direct,
    is_known,
    pool_of,
    translated,
)
from intermission.backends.ledger.postgres.schema import migrate
from intermission.backends.ledger.sql.database import Row
from intermission.backends.ledger.sql.statements import for_postgres, statements
from intermission.ports.clock import Clock

T = TypeVar("T")

SQL = statements("intermission.backends.ledger.postgres", for_postgres)

NEEDS_TIME = frozenset(name for name, sql in SQL.items() if re.search(r"%\(now_m?s\)s", sql))
"""The statements that need the time of their change, which its beginning tells."""
PATIENCE_S = 60.0
"""How long a server may be away, as in a restart or a failover, before it is an error."""
_OPEN_S = 5.0
_PAUSE_S = 0.05
_PAUSE_MAX_S = 2.0


def _bound(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a statement as it takes them: rows as an array for each column."""
    for table, width in _tables(name).items():
        columns = zip(*values.pop(table), strict=True)
        lists: list[Any] = [list(column) for column in columns] or [[]] * width
        values.update((f"{table}_{n}", column) for n, column in enumerate(lists))
    return values


def _run(connection: Any, name: str, values: dict[str, Any]) -> list[Row]:
    return _fetch(connection.execute(SQL[name], _bound(name, values)))


def _fetch(cursor: Any) -> list[Row]:
    return cursor.fetchall() if cursor.description else []


@cache
def _tables(name: str) -> dict[str, int]:
    """The values of a statement that are rows, with how many columns these have.

    They arrive as an array for each column, which is named after the value and its number.
    """
    found = re.findall(r"%\((\w+)_(\d+)\)s", SQL[name])
    return {table: 1 + max(int(n) for t, n in found if t == table) for table, _ in found}


class _MadeBefore(Exception):
    """The change was made by an earlier try, whose answer got lost."""


class Transactions:
    """What every statement runs through."""

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.url = url
        self._clock = clock
        self._patience_s = patience_s
        self._tx: Any = None
        self._queued: list[tuple[str, dict[str, Any]]] = []
        """Statements of the change under way that were not sent yet."""
        self._token: int | None = None
        """Of a change that was not begun yet."""
        self._in_vain = False
        """Set by a change that found nothing to change: it is undone, and no disk has to wait."""
        self._now_ms, self._now_s = 0, 0.0
        self._last_token = 0
        # Where nothing was ever reached, waiting helps nobody: a wrong address is told at once.
        # Where it was, others wait behind this, and whoever opens a ledger can open it again.
        known = is_known(url)
        self._persist(self._open, _OPEN_S if known else 0.0, ask_why=not known)

    def _open(self) -> None:
        if is_known(self.url):
            with borrowed(self.url, wait_s=_OPEN_S / 2, silence_s=_OPEN_S / 2) as connection:
                migrate(connection)
            return
        with closing(connect(self.url)) as connection:
            migrate(connection)
        pool_of(self.url)

    def close(self) -> None:
        """Nothing is held between calls: the connections are the process's."""

    @property
    def now_ms(self) -> int:
        self._begin()
        return self._now_ms

    @property
    def now_s(self) -> float:
        self._begin()
        return self._now_s

    def rows(self, name: str, /, **values: Any) -> list[Row]:
        """The rows of a statement: of the change under way, or else of a read of its own."""
        if self._tx is not None:
            self._queued.append((name, values))
            return self._send()
        clock = self._clock
        now: dict[str, Any] = {"now_s": None, "now_ms": None}  # the database's, unless injected
        if clock is not None:
            now = {"now_s": clock.monotonic_s(), "now_ms": clock.now_ms()}

        def read() -> list[Row]:
            with borrowed(self.url, wait_s=self._wait_s(self._patience_s)) as connection:
                return _run(connection, name, now | values)

        return self._persist(read, self._patience_s)

    def later(self, name: str, /, **values: Any) -> None:
        """Run a statement of the change under way, at the latest with its COMMIT."""
        self._queued.append((name, values))

    def change(self, work: Callable[[], T], *, hurry_s: float | None = None) -> T:
        """Run `work` in a transaction, again from the start if the connection is lost.

        `work` only uses statements of this ledger, and may run several times. With `hurry_s`, it
        is given up after about as long, and so is a statement that is not answered.
        """
        patience_s = self._patience_s if hurry_s is None else min(hurry_s, self._patience_s)
        wait_s = self._wait_s(patience_s)
        token = secrets.randbits(62)
        answers: list[T] = []
        """Filled when a COMMIT is about to be sent: its outcome may never be heard."""

        def change() -> T:
            with borrowed(self.url, wait_s=wait_s, silence_s=hurry_s) as connection:
                try:
                    self._tx, self._token = connection, token
                    answer = work()
                    if self._in_vain:
                        connection.rollback()
                        return answer
                    answers.append(answer)
                    self._commit()
                    self._last_token = token
                    return answer
                except _MadeBefore:
                    connection.rollback()
                    self._last_token = token
                    return answers[-1]
                except BaseException:
                    if not connection.closed:
                        connection.rollback()
                    raise
                finally:
                    self._tx, self._token, self._in_vain = None, None, False
                    self._queued.clear()

        return self._persist(change, patience_s, ask_why=hurry_s is None)

    def _begin(self) -> list[Row]:
        """Start the change under way, unless it has begun. Sets its one time, the database's.

        Statements that are queued and need no time go with it: the rows of the last of them.
        """
        if self._token is None:
            return []
        token, self._token = self._token, None
        early = list(takewhile(lambda one: one[0] not in NEEDS_TIME, self._queued))
        del self._queued[: len(early)]
        tokens = {"token": token, "previous": self._last_token}
        begin = [("begin", {}), ("begin_bounds", {}), ("begin_token", tokens)]
        found = self._send_all([*begin, *early])
        rows = found[len(begin) - 1]
        if not rows:
            raise _MadeBefore
        ((at_s,),) = rows
        self._now_s, self._now_ms = at_s, int(at_s * 1000)
        if self._clock is not None:
            self._now_s, self._now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        return found[-1]

    def _send(self) -> list[Row]:
        """Send what is queued; the rows of the last statement."""
        found = self._begin()
        if not self._queued:
            return found
        if len(self._queued) == 1:  # values apart from the text: the server reads less
            ((name, values),) = self._queued
            self._queued.clear()
            now = {"now_s": self._now_s, "now_ms": self._now_ms}
            return _run(self._tx, name, now | values)
        queued = list(self._queued)
        self._queued.clear()
        return self._send_all(queued)[-1]

    def _commit(self) -> None:
        if self._queued or self._token is None:
            self._begin()
            self._send_all([*self._queued, ("commit", {})])

    def _send_all(self, queued: Sequence[tuple[str, dict[str, Any]]]) -> list[list[Row]]:
        """Statements as one message; the rows of each."""
        now = {"now_s": self._now_s, "now_ms": self._now_ms}
        bound = [(SQL[name], _bound(name, now | values)) for name, values in queued]
        if is_direct(self._tx):
            with self._tx.pipeline():
                cursors = [self._tx.execute(sql, values) for sql, values in bound]
            return [_fetch(cursor) for cursor in cursors]
        cursor = driver().ClientCursor(self._tx)  # which puts the values into the text
        cursor.execute("\n".join(cursor.mogrify(sql, values) for sql, values in bound))
        found = [_fetch(cursor)]
        while cursor.nextset():
            found.append(_fetch(cursor))
        return found

    def show_openings(self) -> None:
        """Triggers have opened them."""

    def nothing_changed(self) -> None:
        self._in_vain = True

    @staticmethod
    def _wait_s(patience_s: float) -> float:
        """How long one try waits for a connection; the tries together are patient."""
        return max(0.1, min(5.0, patience_s))

    def _say_why(self, e: Exception) -> None:
        """A pool only knows that it has no connection: ask for one, to hear the reason."""
        from psycopg_pool import PoolTimeout

        if isinstance(e, PoolTimeout):
            connect(self.url).close()

    def _persist(self, work: Callable[[], T], patience_s: float, *, ask_why: bool = True) -> T:
        """Do it, again and again while only the connection or the server is to blame."""
        deadline_s = time.monotonic() + patience_s
        pause_s = _PAUSE_S
        with translated(self.url):
            while True:
                try:
                    return work()
                except Exception as e:
                    if not can_be_repeated(e):
                        raise
                    forget_broken(self.url, e)
                    if time.monotonic() + pause_s > deadline_s:
                        if ask_why:
                            self._say_why(e)
                        raise
                time.sleep(uniform(0.5, 1.0) * pause_s)
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
