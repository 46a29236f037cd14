"""A receiver of alerts on loopback, as Standard Webhooks describes one: it checks signatures."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


@dataclass(frozen=True)
class Received:
    """A request whose signature was right."""

    id: str
    document: Any
    headers: Mapping[str, str]
    path: str


@dataclass
class Receiver:
    """Takes what it is sent. `troubles` are (status, headers) to answer instead, in turn."""

    port: int = 0
    received: list[Received] = field(default_factory=list[Received])
    refused: int = 0
    """Requests that were answered with a trouble."""
    forged: int = 0
    """Requests whose signature was wrong."""
    troubles: list[tuple[int, Mapping[str, str]]] = field(
        default_factory=list[tuple[int, Mapping[str, str]]]
    )
    before_answer: Callable[[], None] = lambda: None
    answer: bytes = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.received]

    @property
    def kinds(self) -> list[str]:
        return [one.document["type"] for one in self.received]


def is_signed(headers: Mapping[str, str], body: bytes) -> bool:
    """By the letter of the specification, with nothing of ours."""
    content = b".".join(
        [headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body]
    )
    expected = base64.b64encode(hmac.digest(KEY, content, hashlib.sha256)).decode()
    return f"v1,{expected}" in headers["webhook-signature"].split()


@contextmanager
def receiving(port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            if not is_signed(headers, body):
                receiver.forged += 1
                return self._answer(401, {})
            if receiver.troubles:
                receiver.refused += 1
                return self._answer(*receiver.troubles.pop(0))
            message = Received(headers["webhook-id"], json.loads(body), headers, self.path)
            receiver.received.append(message)
            receiver.before_answer()
            self._answer(200, {})

        def _answer(self, status: int, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(receiver.answer)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(receiver.answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Nothing: that a sender hangs up is part of the tests."""

    listener = Listener(("127.0.0.1", port), Handler)
    if tls is not None:
        listener.socket = tls.wrap_socket(listener.socket, server_side=True)
    receiver.port = listener.server_address[1]
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
