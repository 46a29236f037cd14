"""`Bucket`: what can be done with objects by name, each call safe to repeat.

Every conditional write carries a random mark in the object's metadata. When a write is refused,
the mark tells whether it lost to somebody else or to itself, an earlier time whose answer never
came, even if both wrote the same bytes. Names are the service's: this module knows no keys.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import obstore

from intermission.backends.store.retrying_client import ConditionFailed, NoObject, Service
from intermission.errors import StoreError
from intermission.ports.store import Stat

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta
    from obstore.store import ObjectStore as Client

T = TypeVar("T")

# Azure takes no hyphen in the name of a metadata field.
_MARK = "intermissionwriter"
_PART_BYTES = 8 * 1024**2
_PARTS_MAX = 9_000
_PARTS_AT_ONCE = 4
_BLOCK_BYTES = 128 * 1024
_SLOW_BYTES_PER_S = 256 * 1024
_PAGE = 1000
_CREATES_MAX = 10


class Bucket:
    """Objects by name: a `Stat` has the name for its key. Versions are ETags without quotes."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def head(self, name: str) -> Stat | None:
        """What is known of an object without reading it; None where there is none."""
        found = self._look(name)
        return None if found is None else _stat(found.meta)

    def _look(self, name: str) -> GetResult | None:
        look = partial(obstore.get, options={"head": True})
        try:
            return self._service.call(f"looking for {name}", look, name)
        except NoObject:
            return None

    def read(self, name: str) -> bytes:
        """The whole object. Raises `NoObject`."""

        def read(client: Client) -> bytes:
            return bytes(obstore.get(client, name).bytes())

        return self._service.call(f"reading {name}", read)

    def read_range(self, name: str, offset: int, size_bytes: int) -> bytes:
        """A part of the object; less of it where the object ends sooner. Raises `NoObject`."""
        read = partial(obstore.get_range, start=offset, length=size_bytes)
        return bytes(self._service.call(f"reading {name}", read, name))

    def stream(self, name: str, *, if_version: str | None = None) -> Iterator[bytes]:
        """The object's bytes, resumed where a connection broke; all of them of one version.

        Raises `NoObject`, and `ConditionFailed` when the version is or becomes another.
        """
        options: GetOptions = {"if_match": _tag(if_version)} if if_version else {}
        size_bytes = offset = 0

        def start(client: Client) -> Iterator[bytes]:
            nonlocal size_bytes
            found = obstore.get(client, name, options=options)
            size_bytes = found.meta["size"]
            if found.meta["e_tag"]:
                options["if_match"] = found.meta["e_tag"]
            return iter(found.stream(min_chunk_size=_BLOCK_BYTES))

        for block in self._each(f"reading {name}", start):
            offset += len(block)
            options["range"] = {"offset": offset}
            yield block
            if offset >= size_bytes:
                return
        if offset < size_bytes:
            raise StoreError(
                f"expected {size_bytes} bytes of {name} from {self._service.url}, found the "
                f"end after {offset}.",
                remedy="Run the same command again; progress is saved.",
            )

    def put_new(self, name: str, body: bytes) -> str:
        """Write an object in one request, where there is none; its version.

        Raises `ConditionFailed` when there is one that another call wrote.
        """
        for _ in range(_CREATES_MAX):
            with suppress(NoObject):  # refused for an object that is gone again
                return self._put(name, body, "create")
        raise StoreError(
            f"expected {self._service.url} to refuse {name} because it is there, found it refused "
            f"{_CREATES_MAX} times and not there.",
            remedy="Run the same command again; progress is saved.",
        )

    def put(self, name: str, body: bytes) -> str:
        """Write an object in one request, whatever is there; its version."""
        return self._put(name, body, "overwrite")

    def put_version(self, name: str, body: bytes | mmap.mmap, *, if_version: str) -> str:
        """Replace one version of an object in one request; the new version.

        Raises `NoObject` and `ConditionFailed`.
        """
        condition = {"e_tag": _tag(if_version)}
        if self._service.scheme == "gs":
            # Google compares generations, which its listings do not tell; the ETag leads to one.
            found = self._look(name)
            if found is None:
                raise NoObject(f"there is no object {name}.")
            if _bare(found.meta["e_tag"]) != if_version:
                raise ConditionFailed(f"{name} has another version.")
            condition["version"] = found.meta["version"] or ""
        return self._put(name, body, condition)

    def _put(self, name: str, body: bytes | mmap.mmap, mode: Any) -> str:
        """Write in one request; `NoObject` when it was refused and there is nothing there."""
        mark, requests = os.urandom(16).hex(), 0

        def put(client: Client) -> str:
            nonlocal requests
            requests += 1
            attributes: Any = {_MARK: mark}
            made = obstore.put(
                client, name, body, mode=mode, attributes=attributes, use_multipart=False
            )
            return _bare(made["e_tag"])

        client = self._service.client(timeout_s=len(body) / _SLOW_BYTES_PER_S)
        try:
            return self._service.call(f"writing {name}", put, client=client)
        except ConditionFailed as e:
            found = self._look(name)
            if found is None:
                raise NoObject(e.message, remedy=e.remedy) from e
            marked = found.attributes.get(_MARK)
            # A service that keeps no marks: only a repeated request can have lost to itself.
            if marked == mark or (marked is None and requests > 1 and self._has(name, body)):
                return _bare(found.meta["e_tag"])
            raise

    def put_parts(self, name: str, file: Path) -> str:
        """Write a file of any size in parts, whatever is there; its version."""
        size_bytes = file.stat().st_size
        part_bytes = max(_PART_BYTES, -(-size_bytes // _PARTS_MAX))
        at_once_bytes = min(size_bytes, _PARTS_AT_ONCE * part_bytes)
        put = partial(
            obstore.put, use_multipart=True, chunk_size=part_bytes, max_concurrency=_PARTS_AT_ONCE
        )
        client = self._service.client(timeout_s=at_once_bytes / _SLOW_BYTES_PER_S, is_patient=True)
        made = self._service.call(f"writing {name}", put, name, file, client=client)
        return _bare(made["e_tag"])

    def copy(self, name: str, to: str) -> None:
        """Copy an object, whatever is there. Raises `NoObject`."""
        self._service.call(f"copying {name} to {to}", obstore.copy, name, to)

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""
        with suppress(NoObject):
            self._service.call(f"deleting {name}", obstore.delete, name)

    def sign(self, name: str, *, expires_s: int, writes: bool = False) -> str:
        """A URL that reads an object until it expires, or writes it."""
        method, expires = "PUT" if writes else "GET", timedelta(seconds=expires_s)
        return self._service.call(f"signing a URL of {name}", obstore.sign, method, name, expires)

    def list(self, start: str) -> Iterator[Stat]:
        """Every object whose name starts with `start`, in the order of names.

        Page by page where the service promises that order; else all of them are sorted here.
        """
        if self._service.lists_in_order:
            return self._list(start)
        return iter(sorted(self._list(start), key=lambda found: found.key.encode()))

    def _list(self, start: str) -> Iterator[Stat]:
        # The service lists whole folders. Every name wanted comes after `last`.
        folder, _, rest = start.rpartition("/")
        last = start[:-1] if rest[:-1] not in ("", ".", "..") else None

        def pages(client: Client) -> Iterator[Any]:
            return iter(obstore.list(client, folder, offset=last, chunk_size=_PAGE))

        for page in self._each(f"listing {start or 'everything'}", pages):
            for found in page:
                last = found["path"]
                if last.startswith(start):
                    yield _stat(found)
                elif last > start and self._service.lists_in_order:
                    return

    def _each(self, doing: str, start: Callable[[Client], Iterator[T]]) -> Iterator[T]:
        """What an iterator gives. After a failure `start` makes another, for what is left."""
        resumed: Iterator[T] | None = None

        def step(client: Client) -> T | None:
            nonlocal resumed
            # One that failed is of no more use: forget it until it has proved itself.
            current, resumed = resumed or start(client), None
            found = next(current, None)
            resumed = current
            return found

        while (found := self._service.call(doing, step)) is not None:
            yield found

    def _has(self, name: str, body: bytes | mmap.mmap) -> bool:
        """Whether an object has exactly these bytes."""
        digest = hashlib.sha256()
        try:
            for block in self.stream(name):
                digest.update(block)
        except (NoObject, ConditionFailed):
            return False
        return digest.digest() == hashlib.sha256(body).digest()


def _stat(found: ObjectMeta) -> Stat:
    modified_ms = round(found["last_modified"].timestamp() * 1000)
    return Stat(found["path"], found["size"], _bare(found["e_tag"]), modified_ms)


def _tag(version: str) -> str:
    """A version as the service spells it in a condition."""
    return f'"{version}"'


def _bare(e_tag: str | None) -> str:
    return (e_tag or "").strip('"')
