"""`FaultProxy`: a proxy in front of an object server that misbehaves on request.

It forwards every request as it came, Host and signature included, so the server still accepts
what the client signed for the proxy's address. One chosen request gets a `Fault`. It buffers
whole bodies and knows HTTP/1.1 with Content-Length only: enough for an object-store client.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from servers.seaweed import S3Server


class Request(NamedTuple):
    method: str
    path: str
    range: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a request. Fields combine: a request may be forwarded and then lost."""

    forward: bool = True
    status: int = 0  # answered in place of the server's own answer
    code: str = "Injected"  # the reason in that answer
    reset: bool = False  # the connection is reset in place of an answer
    hold: bool = False  # the answer is held back until the client has gone away
    cut: bool = False  # the answer's body ends half way, under the full Content-Length


LOST_REPLY = Fault(reset=True)
RESET = Fault(forward=False, reset=True)
CUT_BODY = Fault(cut=True)
SLOW = Fault(hold=True)


def answer(status: int, code: str = "Injected") -> Fault:
    """The server never sees the request."""
    return Fault(forward=False, status=status, code=code)


@pytest.fixture(scope="session")
def fault_proxy(s3: S3Server) -> Iterator[FaultProxy]:
    """A proxy in front of the `s3` server; it does nothing until it is armed."""
    if not s3.endpoint.startswith("http:"):
        pytest.skip("the proxy speaks to servers over plain HTTP only")
    with FaultProxy(s3.endpoint.removeprefix("http://")).running() as proxy:
        yield proxy


class FaultProxy:
    """One listening proxy. `requests` is what came in since the last `arm`, in order."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._lock = threading.Lock()
        self._fault: tuple[int, int, Fault] | None = None
        self._matches: Callable[[Request], bool] = lambda _: True
        self._matched = 0
        self.requests: list[Request] = []
        proxy = self

        class Handler(_Handler):
            def handle_request(self) -> None:
                proxy._serve(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def arm(
        self,
        fault: Fault | None = None,
        *,
        nth: int = 0,
        times: int = 1,
        matching: Callable[[Request], bool] = lambda _: True,
    ) -> None:
        """Forget what came in, and inflict `fault` on `times` matching requests from the nth."""
        with self._lock:
            self._fault = None if fault is None else (nth, nth + times, fault)
            self._matches = matching
            self._matched = 0
            self.requests = []

    def disarm(self) -> None:
        """Behave again; `requests` stays as it is."""
        with self._lock:
            self._fault = None

    @contextmanager
    def running(self) -> Iterator[FaultProxy]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _next_fault(self, request: Request) -> Fault:
        with self._lock:
            self.requests.append(request)
            if not self._matches(request):
                return Fault()
            turn, self._matched = self._matched, self._matched + 1
            if self._fault and self._fault[0] <= turn < self._fault[1]:
                return self._fault[2]
            return Fault()

    def _serve(self, client: _Handler) -> None:
        body = client.rfile.read(int(client.headers.get("Content-Length") or 0))
        fault = self._next_fault(
            Request(client.command, client.path, client.headers.get("Range", ""))
        )
        reply = self._forward(client, body) if fault.forward else None
        if fault.hold:
            client.wait_until_gone()
        elif fault.reset:
            client.reset()
        elif fault.status:
            client.answer(fault.status, [], _error_body(fault))
        elif reply is not None:
            client.answer(reply.status, reply.headers, reply.body, cut=fault.cut)

    def _forward(self, client: _Handler, body: bytes) -> _Reply:
        upstream = http.client.HTTPConnection(self._upstream, timeout=30)
        try:
            upstream.putrequest(
                client.command, client.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in client.headers.items():
                if name.lower() != "expect":
                    upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            return _Reply(answer.status, answer.getheaders(), answer.read())
        finally:
            upstream.close()


class _Reply(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_request(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.handle_request()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: tests read `requests`."""

    def answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False
    ) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            # An orderly end: a reset would take back what the client has not read yet.
            self.close_connection = True

    def wait_until_gone(self) -> None:
        self.close_connection = True
        self.connection.recv(1)

    def reset(self) -> None:
        """Close without a farewell, so that the client sees a reset and not an end."""
        self.close_connection = True
        self.wfile.flush()
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()


def _error_body(fault: Fault) -> bytes:
    return f"<Error><Code>{fault.code}</Code><Message>no. {fault.status}</Message></Error>".encode()
