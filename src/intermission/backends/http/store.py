"""`HttpStore`: the files of one job, its store or its outputs, behind a server.

What is sent carries its SHA-256, which the server checks while it reads; what is fetched is
checked here. When the outcome of a write is unknown, the object that stands is compared with what
was sent, so that nobody is told to have lost to himself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

from intermission.backends.http import rpc_schema
from intermission.backends.http.client import PATIENCE_S, STORE, Server, Taken, server
from intermission.backends.store.key_encoding import name_of
from intermission.backends.store.keys import checked_key, split_prefix
from intermission.backends.store.self_test import prove_create_only
from intermission.backends.store.store_errors import missing, verify, whole_range
from intermission.errors import CorruptArtifact, NotFound, StoreError, UsageError, fault_from_os
from intermission.ports.store import Stat

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

_BLOCK_BYTES = 1024**2
_VERIFIED_MAX = 10_000


class HttpStore:
    """A job's store or outputs. Picklable; any number of threads and processes may share it."""

    def __init__(
        self, url: str, key: str, job: str, area: str = "store", *, patience_s: float = PATIENCE_S
    ) -> None:
        if area not in rpc_schema.AREAS:
            raise UsageError(
                f"a job has no {area!r}.", remedy=f"Its areas are {', '.join(rpc_schema.AREAS)}."
            )
        self._opened = url, key, job, area, patience_s
        self._path = f"{rpc_schema.API}/jobs/{quote(job, safe='')}/{area}"
        self._patience_s = patience_s
        self._verified: dict[str, tuple[str, str]] = {}
        self._process = os.getpid()
        self._server = server(url, key)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, self._opened

    @property
    def uri(self) -> str:
        return f"{self._opened[0].rstrip('/')}{self._path}"

    def create(self, key: str, data: bytes | Path) -> Stat:
        return self._put(key, data, {"If-None-Match": "*"})

    def replace(self, key: str, data: bytes | Path, *, if_version: str | None = None) -> Stat:
        condition = {} if if_version is None else {"If-Match": f'"{quote(if_version, safe=":")}"'}
        return self._put(key, data, condition)

    def read(self, key: str) -> bytes:
        return self._get(f"reading {key}", key, lambda response: response.read())

    def read_range(self, key: str, offset: int, size_bytes: int) -> bytes:
        doing = f"reading {key}"
        headers = {"Range": f"bytes={offset}-{offset + size_bytes - 1}"}
        try:
            found = self._call(
                doing, "GET", self._url(key), lambda answer: answer.read(), headers=headers
            )
        except NotFound:
            raise missing(key, self.uri) from None
        return whole_range(key, self.uri, found, offset, size_bytes)

    def fetch(self, key: str, to: Path, *, size_bytes: int, sha256: str) -> Path:
        """`to`, downloaded and verified; one that is there with these bytes is taken as it is."""

        def accept(found_bytes: int | None, digest: Callable[[], str]) -> None:
            where = self.uri
            verify(
                key,
                where,
                size_bytes=size_bytes,
                sha256=sha256,
                found_bytes=found_bytes,
                digest=digest,
            )

        query = f"?sha256={sha256}&size_bytes={size_bytes}"
        for is_last in (False, True):
            found = self.stat(key)
            if found is None or found.size_bytes != size_bytes:
                accept(None if found is None else found.size_bytes, str)
            assert found is not None
            if self._verified.get(key) == (found.version, sha256) and _has(to, size_bytes, sha256):
                break
            try:
                self._get(f"fetching {key}", key, lambda r: _receive(key, r, to, accept), query)
            except (CorruptArtifact, NotFound, Taken) as e:
                # It was replaced meanwhile, or altered on its way here: once more, to be sure.
                if is_last and not isinstance(e, CorruptArtifact):
                    accept(None, str)
                if is_last:
                    raise
                continue
            if len(self._verified) >= _VERIFIED_MAX:
                self._verified.clear()
            self._verified[key] = found.version, sha256
            break
        return to

    def stat(self, key: str) -> Stat | None:
        path = self._url(key)

        def read(response: httpx.Response) -> Stat:
            version = unquote(response.headers["ETag"].strip('"'))
            modified_ms = int(response.headers[rpc_schema.MODIFIED_HEADER])
            return Stat(key, int(response.headers["Content-Length"]), version, modified_ms)

        try:
            return self._call(f"looking for {key}", "HEAD", path, read)
        except NotFound:
            return None

    def list(self, prefix: str) -> Iterator[Stat]:
        split_prefix(prefix)
        return self._list(prefix)

    def _list(self, prefix: str) -> Iterator[Stat]:
        # The whole list is read before any of it is used: a cut one is asked for again.
        path = f"{self._path}?prefix={quote(prefix, safe='')}"
        doing = f"listing {prefix or 'everything'}"
        body = self._call(doing, "GET", path, lambda response: response.read())
        for line in body.splitlines():
            yield rpc_schema.stats.validate_json(line)

    def move(self, key: str, to: str) -> None:
        call = rpc_schema.Move(key=checked_key(key), to=checked_key(to))
        body = call.model_dump_json().encode()
        doing = f"moving {key} to {to}"
        self._call(doing, "POST", self._path, lambda response: None, body=body)

    def delete(self, key: str) -> None:
        self._call(f"deleting {key}", "DELETE", self._url(key), lambda response: None)

    def presign(self, key: str, *, expires_s: int, writes: bool = False) -> str:
        """The object's URL. It does not expire, and asks for a key as every call does."""
        return f"{self._opened[0].rstrip('/')}{self._url(key)}"

    def local_path(self, key: str) -> Path | None:
        checked_key(key)
        return None

    def self_test(self) -> None:
        prove_create_only(self)

    def _put(self, key: str, data: bytes | Path, condition: dict[str, str]) -> Stat:
        path = self._url(key)
        with _file_faults(key, data):
            size_bytes, sha256 = _measured(data)
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(size_bytes),
                "X-Content-SHA256": sha256,
                **condition,
            }
            body = data if isinstance(data, bytes) else lambda: _blocks(data)
            try:
                return self._call(f"writing {key}", "PUT", path, _stat, body=body, headers=headers)
            except Taken as e:
                if e.was_repeated and (own := self._standing(key, size_bytes, sha256)):
                    return own
                raise

    def _standing(self, key: str, size_bytes: int, sha256: str) -> Stat | None:
        """The object that stands, if it has these bytes."""
        found = self.stat(key)
        if found is None or found.size_bytes != size_bytes:
            return None
        digest = hashlib.sha256()

        def read(response: httpx.Response) -> str:
            again = digest.copy()
            for block in response.iter_bytes(_BLOCK_BYTES):
                again.update(block)
            return again.hexdigest()

        query = f"?sha256={sha256}&size_bytes={size_bytes}"
        try:
            return found if self._get(f"reading {key}", key, read, query) == sha256 else None
        except (NotFound, Taken, CorruptArtifact):
            return None

    def _get(
        self, doing: str, key: str, receive: Callable[[httpx.Response], T], query: str = ""
    ) -> T:
        path = self._url(key) + query
        try:
            return self._call(doing, "GET", path, receive)
        except NotFound:
            raise missing(key, self.uri) from None

    def _call(
        self,
        doing: str,
        verb: str,
        path: str,
        receive: Callable[[httpx.Response], T],
        *,
        body: bytes | Callable[[], Iterator[bytes]] = b"",
        headers: dict[str, str] | None = None,
    ) -> T:
        return self._connected().call(
            doing,
            verb,
            path,
            receive,
            faults=STORE,
            body=body,
            headers=headers,
            patience_s=self._patience_s,
        )

    def _connected(self) -> Server:
        if self._process != os.getpid():  # the connections are the parent's
            self._process, self._server = os.getpid(), server(*self._opened[:2])
        return self._server

    def _url(self, key: str) -> str:
        return f"{self._path}/{quote(name_of(checked_key(key)), safe='/')}"


def _reopened(url: str, key: str, job: str, area: str, patience_s: float) -> HttpStore:
    return HttpStore(url, key, job, area, patience_s=patience_s)


def _stat(response: httpx.Response) -> Stat:
    return rpc_schema.stats.validate_json(response.read())


def _measured(data: bytes | Path) -> tuple[int, str]:
    if isinstance(data, bytes):
        return len(data), hashlib.sha256(data).hexdigest()
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return os.fstat(file.fileno()).st_size, digest


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


@contextmanager
def _file_faults(key: str, data: bytes | Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        where = data if isinstance(data, Path) else ""
        raise fault_from_os(e, f"writing {key}", StoreError, where=where) from e


def _receive(
    key: str,
    response: httpx.Response,
    to: Path,
    accept: Callable[[int, Callable[[], str]], None],
) -> None:
    """Write the body to a file that appears whole, unless `accept` raises."""
    part = to.with_name(f".{os.urandom(8).hex()}.part")
    digest, size_bytes = hashlib.sha256(), 0
    try:
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            with part.open("xb") as file:
                for block in response.iter_bytes(_BLOCK_BYTES):
                    file.write(block)
                    digest.update(block)
                    size_bytes += len(block)
            accept(size_bytes, digest.hexdigest)
            part.replace(to)
        finally:
            part.unlink(missing_ok=True)
    except OSError as e:
        raise fault_from_os(e, f"fetching {key}", StoreError, where=to.parent) from e


def _has(path: Path, size_bytes: int, sha256: str) -> bool:
    try:
        return path.stat().st_size == size_bytes and _measured(path)[1] == sha256
    except OSError:
        return False
