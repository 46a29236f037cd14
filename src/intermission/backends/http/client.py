"""A server as one process talks to it: connections, patience, and errors that explain.

A call without a usable answer is repeated for a limited time, waiting longer each time and at
least as long as the server asks for; a refusal of the key or of the program's version is raised
at once. All that a process does at one server with one key shares one of these. It is never
carried across a fork.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from intermission import __version__, errors
from intermission.backends.http.work_schema import PROBLEM_PREFIX, PROGRAM_HEADER
from intermission.errors import (
    ChangeRefused,
    CorruptArtifact,
    EnvironmentFault,
    IntermissionError,
    LedgerError,
    LedgerRefused,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    UsageError,
    WorkspaceBusy,
)

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

PATIENCE_S = 30.0
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0
BLOCK_BYTES = 1024**2
_DELAY_S = 0.1
_DELAY_MAX_S = 5.0
_REFUSED = frozenset({401, 403, 426})
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_UNACCEPTABLE = frozenset({400, 413, 422})


@dataclass(frozen=True)
class Faults:
    """Which errors a port raises."""

    error: type[EnvironmentFault]
    refused: type[EnvironmentFault]
    unavailable: type[EnvironmentFault]
    unacceptable: type[EnvironmentFault] | None = None
    """For a request that the server never takes, however often it comes; else by its problem."""


LEDGER = Faults(LedgerError, LedgerRefused, LedgerError)
WORK = Faults(LedgerError, LedgerRefused, LedgerError, ChangeRefused)
STORE = Faults(StoreError, StoreRefused, StoreUnavailable)


class Elsewhere(Exception):
    """Another server than ours gave no usable answer."""


class Server:
    """One server, called with one key. Any number of threads may share it."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url.rstrip("/")
        self._httpx = _library()
        try:
            self._client: httpx.Client = self._httpx.Client(
                base_url=self.url,
                # Certificates take long to load, and plain HTTP has none to verify.
                verify=not self.url.startswith("http:"),
                headers={
                    **({"Authorization": f"Bearer {key}"} if key else {}),
                    "User-Agent": f"intermission/{__version__}",
                    PROGRAM_HEADER: __version__,
                },
                # Below what servers keep idle connections for, so that few are found closed.
                limits=self._httpx.Limits(max_connections=64, keepalive_expiry=4.0),
            )
        except (self._httpx.InvalidURL, ValueError) as e:
            raise _no_url(url) from e
        weakref.finalize(self, self._client.close)

    def call(
        self,
        doing: str,
        verb: str,
        path: str,
        receive: Callable[[httpx.Response], T],
        *,
        faults: Faults,
        body: bytes | Callable[[], Iterator[bytes]] = b"",
        headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        patience_s: float = PATIENCE_S,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> T:
        """What `receive` makes of the answer. It may be asked again, with another answer.

        `doing` completes the sentence "... failed". `body` and `headers` as functions are asked
        before each try. Raises what `faults` names, and errors of ours that the server answered.
        """
        until_s, delay_s = time.monotonic() + patience_s, _DELAY_S
        limits_s = self._httpx.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s))
        while True:
            try:
                with self._answer(
                    verb,
                    path,
                    content=body() if callable(body) else body,
                    headers=dict((headers() if callable(headers) else headers) or {}),
                    timeout=limits_s,
                ) as response:
                    if response.is_success or response.has_redirect_location:
                        return receive(response)
                    response.read()
            except self._httpx.UnsupportedProtocol as e:
                raise _no_url(self.url) from e
            except self._httpx.TransportError as e:
                said, wait_s, remedy = f"{type(e).__name__}: {e}".rstrip(": "), 0.0, ""
            else:
                if response.status_code not in _PASSING:
                    raise self._error(doing, response, faults)
                said, wait_s = f"answered {_said(response)}", _retry_after_s(response)
                remedy = str(_problem(response).get("remedy", ""))
            pause_s = max(wait_s, delay_s * random.uniform(0.5, 1))
            if time.monotonic() + pause_s > until_s:
                raise faults.unavailable(
                    f"{doing} failed: {self.url} gave no usable answer for {patience_s:g} s "
                    f"({said}).",
                    remedy=remedy
                    or "Is the server running, and is its URL right? Progress is saved.",
                )
            time.sleep(pause_s)
            delay_s = min(delay_s * 2, _DELAY_MAX_S)

    @contextmanager
    def _answer(self, verb: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """An answer that goes with its body when nobody has it any more.

        An httpx response and its stream hold each other. Python finds that when it looks for
        cycles, and a worker, which makes many small values, has it look rarely.
        """
        with self._client.stream(verb, path, **options) as response:
            try:
                yield response
            finally:
                response.close()
                response.stream = self._httpx.ByteStream(b"")

    def send_file(
        self,
        doing: str,
        path: str,
        file: Path,
        size_bytes: int,
        sha256: str,
        receive: Callable[[httpx.Response], T],
        *,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Put a file with its length and SHA-256, which the server checks. Raises `StoreError`."""
        own = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(size_bytes),
            "X-Content-SHA256": sha256,
        }
        return self.call(
            doing,
            "PUT",
            path,
            receive,
            faults=STORE,
            body=lambda: blocks(file),
            headers={**own, **(headers or {})},
        )

    @contextmanager
    def elsewhere(
        self,
        verb: str,
        url: str,
        headers: Mapping[str, str],
        body: Iterator[bytes] | None = None,
    ) -> Iterator[httpx.Response]:
        """What another server answers, which is shown no key of ours. Raises `Elsewhere`."""
        how: dict[str, Any] = {"headers": headers, "timeout": ANSWER_TIMEOUT_S, "content": body}
        try:
            with self._httpx.stream(verb, url, **how) as found:
                if not found.is_success:
                    raise Elsewhere(f"it answered {found.status_code}")
                yield found
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as e:
            raise Elsewhere(f"{type(e).__name__}: {e}".rstrip(": ")) from e

    def _error(self, doing: str, response: httpx.Response, faults: Faults) -> IntermissionError:
        problem = _problem(response)
        detail, remedy = str(problem.get("detail", "")), str(problem.get("remedy", ""))
        if response.status_code in _REFUSED:
            return faults.refused(
                f"{doing} failed: {self.url} refused it ({_said(response)}).",
                remedy=remedy or "Give this worker a key that the server takes.",
            )
        if response.status_code in _UNACCEPTABLE and faults.unacceptable is not None:
            return faults.unacceptable(
                f"{doing} failed: {self.url} never takes this ({_said(response)}).", remedy=remedy
            )
        _, is_ours, name = str(problem.get("type")).rpartition(PROBLEM_PREFIX)
        kind = getattr(errors, name, None) if is_ours else None
        if kind is CorruptArtifact:
            return CorruptArtifact(detail, task_key="", key="", remedy=remedy)
        if (
            isinstance(kind, type)
            and issubclass(kind, IntermissionError)
            and kind is not WorkspaceBusy
        ):
            return kind(detail, remedy=remedy)
        return faults.error(
            f"{doing} failed: {self.url} answered {_said(response)}.",
            remedy=remedy or "Is that the URL of an Intermission server?",
        )


_lock = threading.Lock()
_servers: weakref.WeakValueDictionary[tuple[int, str, str], Server] = weakref.WeakValueDictionary()


def server(url: str, key: str) -> Server:
    """The one of this process."""
    name = (os.getpid(), url, key)
    with _lock:
        found = _servers.get(name)
        if found is None:
            found = _servers[name] = Server(url, key)
        return found


def measured(file: Path) -> tuple[int, str]:
    """The size and the SHA-256 of a file."""
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
        return os.fstat(opened.fileno()).st_size, sha256


def blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while block := opened.read(BLOCK_BYTES):
            yield block


def _no_url(text: str) -> UsageError:
    return UsageError(
        f"expected the URL of a server, found {text!r}.",
        remedy="Write it as http://host:8400 or https://host.",
    )


def _library() -> Any:
    try:
        import httpx
    except ImportError as e:
        raise EnvironmentFault(
            "the package httpx is missing.", remedy="Run `pip install 'intermission[serve]'`."
        ) from e
    return httpx


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _said(response: httpx.Response) -> str:
    detail = str(_problem(response).get("detail", "")).rstrip(".")
    return f"{response.status_code} {response.reason_phrase}".rstrip() + (
        f": {detail}" if detail else ""
    )


def _retry_after_s(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", "0")))
    except ValueError:
        return 0.0
