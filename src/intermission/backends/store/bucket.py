"""`Bucket`: what can be done with objects by name, each call safe to repeat.

Every conditional write carries a random mark in the object's metadata. When a write is refused,
the mark tells whether it lost to somebody else or to itself, an earlier time whose answer never
came, even if both wrote the same bytes. Names are the service's: this module knows no keys.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intermission.backends.store.retrying_client import ConditionFailed, NoObject, Service
from intermission.errors import StoreError

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta
    from obstore.store import ObjectStore as Client

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
    """Objects by name. Versions are ETags without their quotes."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def head(self, name: str) -> ObjectMeta | None:
        """What is known of an object without reading it; None where there is none."""
        found = self._look(name)
        return None if found is None else found.meta

    def _look(self, name: str) -> GetResult | None:
        import obstore

        def look(client: Client) -> GetResult:
            return obstore.get(client, name, options={"head": True})

        try:
            return self._service.call(f"looking for {name}", look)
        except NoObject:
            return None

    def read(self, name: str) -> bytes:
        """The whole object. Raises `NoObject`."""
        import obstore

        def read(client: Client) -> bytes:
            return bytes(obstore.get(client, name).bytes())

        return self._service.call(f"reading {name}", read)

    def read_range(self, name: str, offset: int, size_bytes: int) -> bytes:
        """A part of the object; less of it where the object ends sooner. Raises `NoObject`."""
        import obstore

        def read(client: Client) -> bytes:
            return bytes(obstore.get_range(client, name, start=offset, length=size_bytes))

        return self._service.call(f"reading {name}", read)

    def stream(self, name: str, *, if_version: str | None = None) -> Iterator[bytes]:
        """The object's bytes, resumed where a connection broke; all of them of one version.

        Raises `NoObject`, and `ConditionFailed` when the version is or becomes another.
        """
        import obstore

        options: GetOptions = {"if_match": tag(if_version)} if if_version else {}
        blocks: Iterator[bytes] | None = None
        size_bytes = None
        offset = 0

        def read(client: Client) -> bytes:
            nonlocal blocks, size_bytes
            # A stream that failed is of no more use: forget it until it has proved itself.
            resumed, blocks = blocks, None
            if resumed is None:
                found = obstore.get(client, name, options=options)
                size_bytes = found.meta["size"]
                if found.meta["e_tag"]:
                    options["if_match"] = found.meta["e_tag"]
                resumed = iter(found.stream(min_chunk_size=_BLOCK_BYTES))
            block = next(resumed, b"")
            blocks = resumed
            return block

        while size_bytes is None or offset < size_bytes:
            block = self._service.call(f"reading {name}", read)
            if not block and offset < (size_bytes or 0):
                raise StoreError(
                    f"expected {size_bytes} bytes of {name} from {self._service.url}, found the "
                    f"end after {offset}.",
                    remedy="Run the same command again; progress is saved.",
                )
            offset += len(block)
            options["range"] = {"offset": offset}
            yield block

    def put_new(self, name: str, body: bytes) -> str:
        """Write an object in one request, where there is none; its version.

        Raises `ConditionFailed` when somebody else's is there.
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
        if self._service.scheme != "gs":
            return self._put(name, body, {"e_tag": tag(if_version)})
        # Google compares generations, which its listings do not tell; the ETag leads to one.
        found = self.head(name)
        if found is None:
            raise NoObject(f"there is no object {name}.")
        if version_of(found) != if_version:
            raise ConditionFailed(f"{name} has another version.")
        condition = {"e_tag": tag(if_version), "version": found["version"] or ""}
        return self._put(name, body, condition)

    def _put(self, name: str, body: bytes | mmap.mmap, mode: Any) -> str:
        """Write in one request; `NoObject` when it was refused and there is nothing there."""
        import obstore

        mark = os.urandom(16).hex()

        def put(client: Client) -> str:
            made = obstore.put(
                client, name, body, mode=mode, attributes={_MARK: mark}, use_multipart=False
            )
            return _bare(made["e_tag"])

        client = self._service.client(timeout_s=len(body) / _SLOW_BYTES_PER_S)
        try:
            return self._service.call(f"writing {name}", put, client)
        except ConditionFailed as e:
            found = self._look(name)
            if found is None:
                raise NoObject(e.message, remedy=e.remedy) from e
            marked = found.attributes.get(_MARK)
            if marked == mark or (marked is None and e.was_repeated and self._has(name, body)):
                return version_of(found.meta)
            raise

    def put_parts(self, name: str, file: Path) -> str:
        """Write a file of any size in parts, whatever is there; its version."""
        import obstore

        size_bytes = file.stat().st_size
        part_bytes = max(_PART_BYTES, -(-size_bytes // _PARTS_MAX))
        at_once_bytes = min(size_bytes, _PARTS_AT_ONCE * part_bytes)

        def put(client: Client) -> str:
            made = obstore.put(
                client,
                name,
                file,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=_PARTS_AT_ONCE,
            )
            return _bare(made["e_tag"])

        client = self._service.client(timeout_s=at_once_bytes / _SLOW_BYTES_PER_S, is_patient=True)
        return self._service.call(f"writing {name}", put, client)

    def copy(self, name: str, to: str) -> None:
        """Copy an object, whatever is there. Raises `NoObject`."""
        import obstore

        def copy(client: Client) -> None:
            obstore.copy(client, name, to)

        self._service.call(f"copying {name} to {to}", copy)

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""
        import obstore

        def delete(client: Client) -> None:
            obstore.delete(client, name)

        try:
            self._service.call(f"deleting {name}", delete)
        except NoObject:
            return

    def sign(self, name: str, *, expires_s: int, writes: bool = False) -> str:
        """A URL that reads an object until it expires, or writes it."""
        import obstore

        def sign(client: Any) -> str:
            method = "PUT" if writes else "GET"
            return obstore.sign(client, method, name, timedelta(seconds=expires_s))

        return self._service.call(f"signing a URL of {name}", sign)

    def list(self, start: str) -> Iterator[ObjectMeta]:
        """Every object whose name starts with `start`, in the order of names.

        Page by page where the service promises that order; else all of them are sorted here.
        """
        if self._service.lists_in_order:
            return self._list(start)
        return iter(sorted(self._list(start), key=lambda found: found["path"].encode()))

    def _list(self, start: str) -> Iterator[ObjectMeta]:
        import obstore

        # The service lists whole folders. Every name wanted comes after `last`.
        folder, _, rest = start.rpartition("/")
        last = start[:-1] if rest[:-1] not in ("", ".", "..") else None
        pages: Any = None

        def next_page(client: Client) -> Any:
            nonlocal pages
            resumed, pages = pages, None
            if resumed is None:
                resumed = iter(obstore.list(client, folder, offset=last, chunk_size=_PAGE))
            page = next(resumed, None)
            pages = resumed
            return page

        while page := self._service.call(f"listing {start or 'everything'}", next_page):
            for found in page:
                last = found["path"]
                if last.startswith(start):
                    yield found
                elif last > start and self._service.lists_in_order:
                    return

    def _has(self, name: str, body: bytes | mmap.mmap) -> bool:
        """Whether an object has exactly these bytes."""
        digest = hashlib.sha256()
        try:
            for block in self.stream(name):
                digest.update(block)
        except (NoObject, ConditionFailed):
            return False
        return digest.digest() == hashlib.sha256(body).digest()


def version_of(found: ObjectMeta) -> str:
    """The version of an object: its ETag, spelled as in `tag` but without the quotes."""
    return _bare(found["e_tag"])


def tag(version: str) -> str:
    """A version as the service spells it in a condition."""
    return f'"{version}"'


def _bare(e_tag: str | None) -> str:
    return (e_tag or "").strip('"')
