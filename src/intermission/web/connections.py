"""How many clients may be connected, and how long one may take to say what it wants.

uvicorn waits for the end of a request's headers as long as a client likes, and every such client
holds an open file; a thousand of them use up the usual limit, and nobody else gets in. Here headers
have a deadline, and the client that has been silent longest makes room for a new one. A client
whose request is being answered is never disconnected.
"""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""How long the headers of a request may take."""
FILES_MAX = 65_536
FILES_RESERVED = 256
"""Open files that are no connections: ledgers, stores, what is sent and received."""
CONNECTIONS_MIN = 64

_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n"
    b"content-length: 0\r\n\r\n"
)


def connections_max() -> int:
    """How many connections the limit on open files leaves; the limit is raised if it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    files = FILES_MAX if soft == resource.RLIM_INFINITY else soft
    return max(CONNECTIONS_MIN, files - FILES_RESERVED)


class Connections:
    """The connections of one server. Those that wait for a request are known oldest first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._all: set[Connection] = set()
        self._waiting: OrderedDict[Connection, None] = OrderedDict()

    def protocol(self, **options: Any) -> Connection:
        """What uvicorn calls for every new connection."""
        return Connection(self, **options)

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for one more; a waiting one is closed to make some."""
        if len(self._all) >= self.limit:
            if not self._waiting:
                return False
            oldest = next(iter(self._waiting))
            self.remove(oldest)
            oldest.transport.abort()
        self._all.add(connection)
        return True

    def waits(self, connection: Connection, is_waiting: bool) -> None:
        if not is_waiting:
            self._waiting.pop(connection, None)
        elif connection in self._all:
            self._waiting.setdefault(connection)

    def remove(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._waiting.pop(connection, None)


class Connection(H11Protocol):
    """uvicorn's protocol with a deadline for headers."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._known = connections
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._known.admit(self):
            self._note_state()
        else:
            self._refuse(_FULL)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note_state()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_state()

    def connection_lost(self, exc: Exception | None) -> None:
        self._known.remove(self)
        self._cancel_deadline()
        super().connection_lost(exc)

    def _note_state(self) -> None:
        is_answered = self.cycle is None or self.cycle.response_complete
        is_waiting = is_answered and self.conn.their_state is h11.IDLE
        self._known.waits(self, is_waiting)
        # Between two requests a connection may be silent for as long as uvicorn keeps it alive.
        has_begun = self.cycle is None or bool(self.conn.trailing_data[0])
        if not (is_waiting and has_begun):
            self._cancel_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_S, self._refuse, _TOO_SLOW)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()
