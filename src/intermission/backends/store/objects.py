"""`ObjectStore`: objects in S3, Google Cloud Storage, Azure or a look-alike, by conditional writes.

A key is an object below the URL's prefix. The ETag is a version here and never a hash: what is
fetched is checked against our own SHA-256 and length.

A file too large for one request goes up in parts under `.tmp/`. Then an empty object takes the
name, create-only like any other, and the service copies the parts' object over it. Conditions on
single writes are what the self-test proves; not every look-alike keeps those on copies and parts
when two race. So a reader may find such an object empty for a moment, or for good where a process
was killed in it: the names of artifacts belong to one attempt, and are read by receipt, which
comes later. Services copy up to 5 GiB; parts of a larger file go straight to the name they took.
What a killed process leaves under `.tmp/` is swept after a day, its unfinished parts by a
lifecycle rule of the bucket. Keys with control characters are listed in the order of their
escaped names.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from intermission.backends.store.key_encoding import key_of, name_of
from intermission.backends.store.keys import TEMP_FOLDER, checked_key, is_key, split_prefix
from intermission.backends.store.retrying_client import SCHEMES, ConditionFailed, NoObject, Service
from intermission.backends.store.self_test import prove_create_only, prove_if_version
from intermission.backends.store.store_errors import changed, missing, taken, verify, whole_range
from intermission.errors import (
    CorruptArtifact,
    EnvironmentFault,
    SourceChanged,
    StoreError,
    UsageError,
    os_faults,
)
from intermission.ports.store import Stat

T = TypeVar("T")

_ONE_REQUEST_BYTES = 16 * 1024**2
_ONE_COPY_BYTES = 5 * 1024**3
_TEMP_KEPT_MS = 24 * 3600 * 1000
_VERIFIED_MAX = 10_000


class ObjectStore:
    """A prefix of a bucket as a store. Picklable; any number of machines may share the prefix."""

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, str] | None = None,
        patience_s: float = 60,
        timeout_s: float = 60,
        one_request_bytes: int = _ONE_REQUEST_BYTES,
        one_copy_bytes: int = _ONE_COPY_BYTES,
    ) -> None:
        """`url` is `s3://bucket/prefix`, or has one of the schemes gs, az, abfs and abfss.

        Credentials, region and endpoint come from the environment (`AWS_*`, `GOOGLE_*`,
        `AZURE_*`); `options` are obstore's and go first. A call that gets no usable answer is
        repeated for `patience_s`; `timeout_s` is the wait for one answer.
        """
        scheme, _, rest = url.partition("://")
        place, _, prefix = rest.partition("/")
        if scheme not in SCHEMES or not place:
            raise UsageError(
                f"expected the URL of a bucket, found {url!r}.",
                remedy=f"Write it as s3://bucket/prefix; the schemes are {', '.join(SCHEMES)}.",
            )
        prefix = prefix.strip("/")
        self._uri = f"{scheme}://{place}" + (f"/{prefix}" if prefix else "")
        self._root = f"{name_of(checked_key(prefix))}/" if prefix else ""
        try:
            from intermission.backends.store.bucket import Bucket
        except ModuleNotFoundError as e:
            raise EnvironmentFault(
                f"expected the package obstore, which reaches {url}, found it missing.",
                remedy="Install it: pip install 'intermission[cloud]'",
            ) from e
        service = Service(
            f"{scheme}://{place}", options or {}, patience_s=patience_s, timeout_s=timeout_s
        )
        self._bucket = Bucket(service)
        self._one_request_bytes = one_request_bytes
        self._one_copy_bytes = one_copy_bytes
        self._verified: dict[str, tuple[str, str]] = {}

    @property
    def uri(self) -> str:
        return self._uri

    def create(self, key: str, data: bytes | Path) -> Stat:
        name = self._name(key)
        with os_faults(f"writing {key}", StoreError, where=_file(data)):
            size_bytes, body = self._body(data)
            try:
                if isinstance(body, bytes):
                    version = self._bucket.put_new(name, body)
                elif self._bucket.head(name) is not None:
                    raise taken(key, self._uri)
                elif size_bytes > self._one_copy_bytes:
                    version = self._take(name, lambda: self._bucket.put_parts(name, body))
                else:
                    version = self._create_by_copy(name, body)
            except ConditionFailed:
                raise taken(key, self._uri) from None
            return self._written(key, size_bytes, version)

    def replace(self, key: str, data: bytes | Path, *, if_version: str | None = None) -> Stat:
        name = self._name(key)
        with os_faults(f"writing {key}", StoreError, where=_file(data)):
            size_bytes, body = self._body(data)
            try:
                if if_version is not None:
                    version = self._replace_version(name, body, if_version)
                elif isinstance(body, bytes):
                    version = self._bucket.put(name, body)
                else:
                    version = self._bucket.put_parts(name, body)
            except (NoObject, ConditionFailed) as e:
                raise changed(key, self._uri, is_there=not isinstance(e, NoObject)) from None
            return self._written(key, size_bytes, version)

    def read(self, key: str) -> bytes:
        try:
            return self._bucket.read(self._name(key))
        except NoObject:
            raise missing(key, self._uri) from None

    def read_range(self, key: str, offset: int, size_bytes: int) -> bytes:
        try:
            found = self._bucket.read_range(self._name(key), offset, size_bytes)
        except NoObject:
            raise missing(key, self._uri) from None
        return whole_range(key, self._uri, found, offset, size_bytes)

    def fetch(self, key: str, to: Path, *, size_bytes: int, sha256: str) -> Path:
        """`to`, downloaded and verified.

        A file that is there already is taken when it has these bytes and the object still has
        the version in which this store object verified them.
        """
        name = self._name(key)

        def accept(found_bytes: int | None, found_sha256: str) -> None:
            verify(
                key,
                self._uri,
                size_bytes=size_bytes,
                sha256=sha256,
                found_bytes=found_bytes,
                digest=lambda: found_sha256,
            )

        for is_last in (False, True):
            found = self._bucket.head(name)
            if found is None or found.size_bytes != size_bytes:
                accept(None if found is None else found.size_bytes, "")
                break
            is_known = self._verified.get(key) == (found.version, sha256)
            if is_known and _has(to, size_bytes, sha256):
                break
            try:
                blocks = self._bucket.stream(name, if_version=found.version)
                _receive(key, blocks, to, accept)
            except (NoObject, ConditionFailed, CorruptArtifact):
                # It was replaced meanwhile, or altered on its way here: once more, to be sure.
                if is_last:
                    raise
                continue
            if len(self._verified) >= _VERIFIED_MAX:
                self._verified.clear()
            self._verified[key] = found.version, sha256
            break
        return to

    def fetch_version(self, key: str, to: Path, *, version: str) -> Path:
        """`to`, with the bytes of this version of the object and no other.

        Raises `SourceChanged` when the object has another version by now, or is gone.
        """
        try:
            _receive(key, self._bucket.stream(self._name(key), if_version=version), to)
        except (NoObject, ConditionFailed) as e:
            found = "it removed" if isinstance(e, NoObject) else "another version"
            raise SourceChanged(
                f"expected version {version} of {self._uri}/{key}, found {found}.",
                remedy="Run the command again to work on what is there now.",
            ) from e
        return to

    def stat(self, key: str) -> Stat | None:
        found = self._bucket.head(self._name(key))
        return None if found is None else replace(found, key=key)

    def list(self, prefix: str) -> Iterator[Stat]:
        split_prefix(prefix)
        return self._list(prefix)

    def _list(self, prefix: str) -> Iterator[Stat]:
        for found in self._bucket.list(self._root + name_of(prefix)):
            key = key_of(found.key.removeprefix(self._root))
            # What cannot be a key is no object: temporary ones, and names that others gave.
            if is_key(key):
                yield replace(found, key=key)

    def move(self, key: str, to: str) -> None:
        """A copy, then a delete."""
        name, target = self._name(key), self._name(to)
        try:
            if self._bucket.head(name) is None:
                raise NoObject(f"there is no object {name}.")
            if name == target:
                return
            self._bucket.copy(name, target)
        except NoObject:
            if self._bucket.head(target) is None:
                raise missing(key, self._uri) from None
            return
        self._bucket.delete(name)

    def delete(self, key: str) -> None:
        self._bucket.delete(self._name(key))

    def presign(self, key: str, *, expires_s: int, writes: bool = False) -> str:
        return self._bucket.sign(self._name(key), expires_s=expires_s, writes=writes)

    def local_path(self, key: str) -> Path | None:
        checked_key(key)
        return None

    def self_test(self) -> None:
        """Prove that conditions are enforced, or raise `StoreError`; sweep what was left behind."""
        prove_create_only(self)
        prove_if_version(self)
        oldest_ms = time.time_ns() // 1_000_000 - _TEMP_KEPT_MS
        for found in self._bucket.list(f"{self._root}{TEMP_FOLDER}/"):
            if found.modified_ms < oldest_ms:
                self._bucket.delete(found.key)

    def _name(self, key: str) -> str:
        return self._root + name_of(checked_key(key))

    def _body(self, data: bytes | Path) -> tuple[int, bytes | Path]:
        """The size, and the bytes themselves where they fit into one request, else the file."""
        if isinstance(data, Path):
            size_bytes = data.stat().st_size
            if size_bytes > self._one_request_bytes:
                return size_bytes, data
            data = data.read_bytes()
        return len(data), bytes(data)

    def _create_by_copy(self, name: str, file: Path) -> None:
        temp = f"{self._root}{TEMP_FOLDER}/{os.urandom(16).hex()}"
        try:
            self._bucket.put_parts(temp, file)
            self._take(name, lambda: self._bucket.copy(temp, name))
        finally:
            # One that stays behind is no object, and is swept later.
            with suppress(StoreError):
                self._bucket.delete(temp)

    def _take(self, name: str, fill: Callable[[], T]) -> T:
        """Take a name with an empty object, then fill it; give it up when that fails."""
        self._bucket.put_new(name, b"")
        try:
            return fill()
        except StoreError:
            with suppress(StoreError):
                self._bucket.delete(name)
            raise

    def _replace_version(self, name: str, body: bytes | Path, if_version: str) -> str:
        if isinstance(body, bytes):
            return self._bucket.put_version(name, body, if_version=if_version)
        # Parts cannot be sent on a condition. The mapping keeps a large file out of memory.
        with (
            body.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):
            return self._bucket.put_version(name, mapped, if_version=if_version)

    def _written(self, key: str, size_bytes: int, version: str | None) -> Stat:
        """What was just written. Should it be replaced by now, that version is not ours."""
        found = self._bucket.head(self._name(key))
        if found is not None and version in (None, found.version):
            return replace(found, key=key)
        modified_ms = time.time_ns() // 1_000_000 if found is None else found.modified_ms
        return Stat(key, size_bytes, version or "", modified_ms)


def _file(data: bytes | Path) -> object:
    return data if isinstance(data, Path) else ""


def _receive(
    key: str,
    blocks: Iterator[bytes],
    to: Path,
    accept: Callable[[int, str], None] = lambda size_bytes, sha256: None,
) -> None:
    """Write blocks to a file that appears whole, unless `accept` raises.

    Others may be receiving the same file at the same time; each writes beside it.
    """
    part = to.with_name(f".{os.urandom(8).hex()}.part")
    digest, size_bytes = hashlib.sha256(), 0
    with os_faults(f"fetching {key}", StoreError, where=to.parent):
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("xb") as file:
                for block in blocks:
                    file.write(block)
                    digest.update(block)
                    size_bytes += len(block)
            accept(size_bytes, digest.hexdigest())
            part.replace(to)
        finally:
            part.unlink(missing_ok=True)


def _has(path: Path, size_bytes: int, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != size_bytes:
                return False
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False
