"""A hub of models on loopback, as Hugging Face's is: an API, files behind a redirect, ranges.

It can cut connections, send other bytes, and forget ranges.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPOSITORY = "Systran/faster-whisper-tiny"
COMMIT = "c0ffee" * 6 + "abcd"
WEIGHTS = bytes(range(256)) * 1024
FILES = {
    "config.json": b'{"suppress_ids": []}',
    "model.bin": WEIGHTS,
    "tokenizer.json": b'{"model": {}}',
    "vocabulary.txt": b"a\nb\n",
    "README.md": b"not wanted",
}


@dataclass
class Hub:
    """What it serves, and what goes wrong: each trouble once for every entry of its list."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    commit: str = COMMIT
    cuts: list[int] = field(default_factory=list[int])
    """After so many bytes of the weights the connection is cut."""
    wrong: int = 0
    """So many answers with the weights have another byte at their end."""
    ignores_ranges: bool = False
    statuses: list[int] = field(default_factory=list[int])
    """Answered instead of files, in turn."""
    ranges: list[str] = field(default_factory=list[str])
    """The ranges of the weights that were asked for."""
    served: list[str] = field(default_factory=list[str])
    """The files whose bytes were sent."""


def _listing(hub: Hub) -> bytes:
    siblings = []
    for name, data in hub.files.items():
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": blob}
        if name == "model.bin":
            entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        siblings.append(entry)
    return json.dumps({"sha": hub.commit, "siblings": siblings}).encode()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == f"/api/models/{REPOSITORY}/revision/main":
                self._answer(200, _listing(hub))
            elif path.startswith(f"/{REPOSITORY}/resolve/{hub.commit}/"):
                self.send_response(302)
                self.send_header("Location", f"/cdn/{path.rpartition('/')[2]}")
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif path.startswith("/cdn/") and hub.statuses:
                self._answer(hub.statuses.pop(0), b"not now")
            elif path.startswith("/cdn/"):
                self._file(path.removeprefix("/cdn/"))
            else:
                self._answer(404, b"{}")

        def _file(self, name: str) -> None:
            data, first = hub.files[name], 0
            hub.served.append(name)
            asked = self.headers.get("Range")
            if name == "model.bin":
                hub.ranges.append(asked or "")
            if asked and not hub.ignores_ranges:
                first = int(asked.removeprefix("bytes=").partition("-")[0])
            if name == "model.bin" and hub.wrong:
                hub.wrong -= 1
                data = data[:-1] + b"?"
            body = data[first:]
            self.send_response(206 if first else 200)
            if first:
                self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if name == "model.bin" and hub.cuts:
                self.wfile.write(body[: hub.cuts.pop(0)])
                self.close_connection = True
                return
            self.wfile.write(body)

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is printed."""

    return Handler


@contextmanager
def model_hub() -> Iterator[Hub]:
    hub = Hub()

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that was killed is no error."""

    with Server(("127.0.0.1", 0), _handler(hub)) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield hub
        server.shutdown()
        thread.join()
