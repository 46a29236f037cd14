"""An instance metadata service on loopback, version 2: what it says and withholds is up to a test.

Without a valid token it says nothing. A path that `says` does not have is not found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
TOKEN = "/latest/api/token"


@dataclass
class MetadataService:
    url: str = ""
    says: dict[str, bytes] = field(default_factory=dict[str, bytes])
    tokens: set[str] = field(default_factory=set[str])
    """Those that are valid; empty it, and they are expired."""
    answers: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Path and status of everything that was answered."""
    token_status: int = 200
    token_suffix: str = ""
    raw: bytes | None = None
    """Sent instead of any answer."""
    before: Callable[[str], object] = lambda _: None
    """Called with the path before it is answered; wait there to be slow."""


@contextmanager
def serving() -> Iterator[MetadataService]:
    service = MetadataService()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            token = uuid4().hex
            if self.path == TOKEN and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]:
                service.tokens.add(token)
                self._answer(service.token_status, (token + service.token_suffix).encode())
            else:
                self._answer(400)

        def do_GET(self) -> None:
            if self.headers["X-aws-ec2-metadata-token"] not in service.tokens:
                return self._answer(401)
            said = service.says.get(self.path)
            self._answer(404 if said is None else 200, said or b"")

        def _answer(self, status: int, body: bytes = b"") -> None:
            service.before(self.path)
            service.answers.append((self.path, status))
            if service.raw is not None:
                self.wfile.write(service.raw)
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Who was kept waiting has hung up."""

    listener = Server(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield service
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
