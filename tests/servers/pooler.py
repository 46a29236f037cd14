"""`Pooler`: stands between a client and PostgreSQL, and may keep notices from the client."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Pooler:
    """Passes everything on to PostgreSQL, and back; with `drops_notices`, as if it kept no session.

    Notices then come through while a query is being answered, because somebody waits, and at no
    other time. PgBouncer in transaction mode does that.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://postgres@127.0.0.1:{self._listener.getsockname()[1]}/postgres"
        self.url += "?sslmode=disable&gssencmode=disable"
        self.drops_notices = False
        self.dropped = 0
        self._open: list[socket.socket] = []
        self._waiting: set[socket.socket] = set()
        """Clients whose query is not answered yet."""

    @contextmanager
    def running(self) -> Iterator[Pooler]:
        accepting = threading.Thread(target=self._accept)
        accepting.start()
        try:
            yield self
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            self._listener.close()

    def _accept(self) -> None:
        threads: list[threading.Thread] = []
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._open += [client, server]
                for one in (
                    threading.Thread(target=self._there, args=(client, server)),
                    threading.Thread(target=self._back, args=(server, client)),
                ):
                    one.start()
                    threads.append(one)
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for each in self._open:
            each.close()

    def _there(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                self._waiting.add(client)
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        """Messages are a letter, a length that counts itself, and what that says."""
        with suppress(OSError), server.makefile("rb") as messages:
            while head := messages.read(5):
                body = messages.read(int.from_bytes(head[1:]) - 4)
                kind = head[:1]
                if kind == b"A" and self.drops_notices and client not in self._waiting:
                    self.dropped += 1
                    continue
                if kind == b"Z":  # ready for the next query
                    self._waiting.discard(client)
                client.sendall(head + body)
            client.shutdown(socket.SHUT_WR)
