"""The JSON API of a server, as commands call it: JSON in, JSON out, and files sent as they are.

What the documents mean is known to the callers. A call whose answer is lost is made again: every
call but the making of a key has the same effect however often it comes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from intermission.backends.http.client import (
    BLOCK_BYTES,
    LEDGER,
    PATIENCE_S,
    STORE,
    measured,
    server,
)
from intermission.errors import EnvironmentFault, LedgerError, fault_from_os, os_faults

if TYPE_CHECKING:
    import httpx

API = "/api/v1"


class ApiClient:
    """One server, asked with one secret. For any thread."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._server = server(url, key)

    def ask(
        self,
        doing: str,
        verb: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Any:
        """The answer. `doing` completes "... failed"; what is None in a query is left out."""
        return self.ask_status(doing, verb, path, body, query=query, patience_s=patience_s)[1]

    def ask_status(
        self,
        doing: str,
        verb: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> tuple[int, Any]:
        """The status too."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            asked = f"?{urlencode(given, doseq=True)}" if given else ""
            sent = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError as e:  # half of a surrogate pair, as in a name that is not UTF-8
            raise LedgerError(
                f"{doing} failed: it holds text that is not UTF-8.",
                remedy="Rename the file whose name it is, and run the same command again.",
            ) from e
        return self._server.call(
            doing,
            verb,
            API + path + asked,
            lambda response: (response.status_code, json.loads(response.read() or b"null")),
            faults=LEDGER,
            body=sent,
            headers={"Content-Type": "application/json", **(headers or {})},
            patience_s=patience_s,
        )

    def send_file(
        self, doing: str, path: str, file: Path, *, query: Mapping[str, str] | None = None
    ) -> Any:
        """Put a file; what the server answers."""
        asked = f"?{urlencode(query)}" if query else ""
        try:
            return self._server.send_file(
                doing,
                API + path + asked,
                file,
                *measured(file),
                lambda response: json.loads(response.read()),
            )
        except OSError as e:
            raise fault_from_os(e, doing, EnvironmentFault, where=file) from e

    def fetch_file(self, doing: str, path: str, file: Path) -> None:
        """Write the answer into a file; begun anew when the connection breaks."""

        def receive(response: httpx.Response) -> None:
            with file.open("wb") as written:
                for block in response.iter_bytes(BLOCK_BYTES):
                    written.write(block)

        with os_faults(doing, EnvironmentFault, where=file):
            self._server.call(doing, "GET", API + path, receive, faults=STORE)


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")
