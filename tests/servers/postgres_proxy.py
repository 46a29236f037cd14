"""`PostgresProxy`: between a ledger and its server, and harms the line at a chosen statement.

It knows as much of the protocol as it takes to tell one statement from the next: messages have a
type and a length, a Query or a Sync ends a statement, and ReadyForQuery ends its answer.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Cut(Enum):
    BEFORE = "the server never sees the statement"
    AFTER = "the server has executed it, and its answer is lost"
    SILENT = "the server has executed it, and from then on nothing comes, and nothing ends"


_SETUP = b"pg_backend_pid", b"enable_seqscan"


class PostgresProxy:
    """One listening proxy. `statements` is how many went through since the last `arm`."""

    def __init__(self, url: str) -> None:
        given = conninfo_to_dict(url)
        self._server = (str(given["host"]), int(str(given["port"])))
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = make_conninfo(url, host="127.0.0.1", port=port, sslmode="disable")
        self._lock = threading.Lock()
        self._fault: tuple[int, Cut] | None = None
        self.statements = 0
        self.cuts = 0
        self._with_setup = False

    def arm(
        self, nth: int | None = None, cut: Cut = Cut.BEFORE, *, with_setup: bool = False
    ) -> None:
        """Count from zero again, and harm the line at the nth statement from now.

        What a pool asks of each new connection, whenever it likes, counts only `with_setup`.
        """
        with self._lock:
            self._with_setup = with_setup
            self._fault = None if nth is None else (nth, cut)
            self.statements = 0
            self.cuts = 0

    @contextmanager
    def running(self) -> Iterator[PostgresProxy]:
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = socket.create_connection(self._server)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(OSError):
            size = client.recv(4, socket.MSG_WAITALL)
            server.sendall(size + _exactly(client, struct.unpack("!i", size)[0] - 4))
            lost: Cut | None = None
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for side in ready:
                    kind, message = _message(side)
                    if side is client:
                        cut = self._cut(kind, message)
                        if cut is Cut.BEFORE:
                            return _reset(client)
                        lost = cut or lost
                        server.sendall(message)
                    elif lost is None:
                        client.sendall(message)
                    elif kind == b"Z":
                        if lost is Cut.SILENT:
                            return _wait_until_gone(client)
                        return _reset(client)

    def _cut(self, kind: bytes, message: bytes) -> Cut | None:
        if kind not in (b"Q", b"S"):
            return None
        if not self._with_setup and any(setup in message for setup in _SETUP):
            return None
        with self._lock:
            turn, self.statements = self.statements, self.statements + 1
            if self._fault is None or self._fault[0] != turn:
                return None
            self.cuts += 1
            return self._fault[1]


def _message(side: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(side, 5)
    return head[:1], head + _exactly(side, struct.unpack("!i", head[1:])[0] - 4)


def _exactly(side: socket.socket, count: int) -> bytes:
    data = side.recv(count, socket.MSG_WAITALL) if count else b""
    if len(data) < count:
        raise ConnectionResetError("the other side has gone")
    return data


def _wait_until_gone(client: socket.socket) -> None:
    while client.recv(4096):
        pass


def _reset(client: socket.socket) -> None:
    """Close without a farewell, so that the client sees a reset and not an end."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
