"""`Heedless`: an S3 look-alike in memory that honours only the conditions it is told to."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Heedless(ThreadingHTTPServer):
    """Objects by path. `heeds` are the condition headers it enforces, in lower case."""

    daemon_threads = True

    def __init__(self, heeds: frozenset[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.heeds = heeds
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def running(self) -> Iterator[Heedless]:
        thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Heedless  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            found = self.server.objects.get(self.path)
            if found is not None and self._heeded("If-None-Match") == "*":
                return self._answer(412)
            wanted = self._heeded("If-Match")
            if wanted and (found is None or wanted != _e_tag(found)):
                return self._answer(412)
            self.server.objects[self.path] = body
        return self._answer(200, body, with_body=False)

    def do_GET(self) -> None:
        if "list-type=2" in self.path:
            return self._answer(200, b"<ListBucketResult></ListBucketResult>")
        found = self.server.objects.get(self.path)
        return self._answer(404) if found is None else self._answer(200, found)

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        self.server.objects.pop(self.path, None)
        self._answer(204)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _heeded(self, header: str) -> str:
        return self.headers.get(header, "") if header.lower() in self.server.heeds else ""

    def _answer(self, status: int, body: bytes = b"", *, with_body: bool = True) -> None:
        self.send_response_only(status)
        self.send_header("ETag", _e_tag(body))
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.send_header("Content-Length", str(len(body) if with_body else 0))
        self.end_headers()
        if with_body and self.command != "HEAD":
            self.wfile.write(body)


def _e_tag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'
