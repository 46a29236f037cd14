"""A web server on loopback that hands out the files of a folder, as any would."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@contextmanager
def serving(folder: Path, beside: Mapping[str, Path]) -> Iterator[str]:
    """The address of `folder`. `beside` are files from elsewhere that seem to lie in it."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def translate_path(self, path: str) -> str:
            elsewhere = beside.get(path.strip("/"))
            return super().translate_path(path) if elsewhere is None else str(elsewhere)

        def end_headers(self) -> None:
            # A playlist that grows must be asked for again.
            self.send_header("Cache-Control", "no-store")
            super().end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.server_address[1]}"
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
