"""Files over HTTP: bodies received while their SHA-256 is taken, and files sent whole or in part.

What was received whole is handed over as bytes or as a file; what was cut or altered on its way
is thrown away. Nothing here knows where a file belongs.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from anyio import to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from intermission.errors import EnvironmentFault, fault_from_os
from intermission.web.problems import Problem
from intermission.web.request_body import cut, declared_bytes, too_large

SHA256_HEADER = "X-Content-SHA256"
BLOCK_BYTES = 1024**2
"""What is held in memory of a file at a time; a smaller one never gets a file of its own."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@asynccontextmanager
async def received(request: Request, folder: Path, max_bytes: int) -> AsyncIterator[bytes | Path]:
    """The body, as bytes or as a file that is removed afterwards; its hash is as announced."""
    expected = request.headers.get(SHA256_HEADER, "")
    if not _SHA256.fullmatch(expected):
        raise Problem(
            400,
            "The SHA-256 is missing",
            f"expected the header {SHA256_HEADER} with 64 hexadecimal digits.",
            remedy="Send the SHA-256 of the bytes with them.",
        )
    if not request.headers.get("content-length", "").isdecimal():
        raise Problem(411, "The length is missing", "expected Content-Length.", remedy="Send it.")
    if declared_bytes(request) > max_bytes:
        raise too_large(max_bytes)
    spool = _Spool(folder)
    try:
        async for chunk in request.stream():
            spool.waiting.append(chunk)
            spool.size_bytes += len(chunk)
            if spool.size_bytes > max_bytes:
                raise too_large(max_bytes)
            if spool.size_bytes - spool.written_bytes >= BLOCK_BYTES:
                await to_thread.run_sync(spool.write)
        body = await spool.finish()
        if (found := spool.digest.hexdigest()) != expected:
            raise Problem(
                422,
                "The bytes are not these",
                f"expected SHA-256 {expected}, found {found}.",
                remedy="Send the file again: something altered it on its way.",
            )
        yield body
    except ClientDisconnect:
        raise cut() from None
    finally:
        if spool.file is not None:
            await to_thread.run_sync(spool.file.close)


class _Spool:
    """Bytes that come in: in memory as long as they are few."""

    def __init__(self, folder: Path) -> None:
        self.digest = hashlib.sha256()
        self.size_bytes = self.written_bytes = 0
        self.waiting: list[bytes] = []
        self._folder = folder
        self.file: IO[bytes] | None = None

    def write(self) -> None:
        block = b"".join(self.waiting)
        self.waiting.clear()
        self.written_bytes = self.size_bytes
        self.digest.update(block)
        try:
            if self.file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self.file = NamedTemporaryFile(dir=self._folder)  # noqa: SIM115 - closed at the end
            self.file.write(block)
            self.file.flush()
        except OSError as e:
            raise fault_from_os(e, "receiving a file", EnvironmentFault, where=self._folder) from e

    async def finish(self) -> bytes | Path:
        """All of it. What is small needs no other thread."""
        if self.file is None:
            body = b"".join(self.waiting)
            self.digest.update(body)
            return body
        await to_thread.run_sync(self.write)
        return Path(self.file.name)


def sent(request: Request, path: Path, headers: Mapping[str, str]) -> Response:
    """A file, or the one range of it that was asked for. No link is followed.

    It is opened here, so that what is sent is one file from beginning to end, whatever takes its
    name meanwhile.
    """
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except OSError as e:
        raise fault_from_os(e, "reading a file", EnvironmentFault, where=path) from e
    try:
        size_bytes = os.fstat(file.fileno()).st_size
        wanted = wanted_range(request, size_bytes, headers.get("ETag", ""))
        first, last = wanted or (0, size_bytes - 1)
        own = {"Accept-Ranges": "bytes", "Content-Length": str(last + 1 - first)}
        if wanted is not None:
            own["Content-Range"] = f"bytes {first}-{last}/{size_bytes}"
        status, headers = 206 if wanted else 200, {**headers, **own}
        if request.method == "HEAD" or last + 1 - first <= BLOCK_BYTES:
            body = b"".join(
                _blocks(file, first, 0 if request.method == "HEAD" else last + 1 - first)
            )
            return Response(body, status, headers, media_type="application/octet-stream")
    except BaseException:
        file.close()
        raise
    blocks = _blocks(file, first, last + 1 - first)
    return StreamingResponse(blocks, status, headers, media_type="application/octet-stream")


def wanted_range(request: Request, size_bytes: int, etag: str) -> tuple[int, int] | None:
    """The first and the last byte that are wanted; None for the whole file."""
    asked = request.headers.get("range")
    if asked is None or request.headers.get("if-range", etag) != etag:
        return None
    found = _RANGE.fullmatch(asked.replace(" ", ""))
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":
        first, last = max(0, size_bytes - int(found[2])), size_bytes - 1
    else:
        first, last = int(found[1]), min(int(found[2] or size_bytes - 1), size_bytes - 1)
    if first <= last:
        return first, last
    raise Problem(
        416,
        "The range is beyond the end",
        f"the file has {size_bytes} bytes.",
        remedy="Ask for bytes that it has.",
        headers={"Content-Range": f"bytes */{size_bytes}"},
    )


def _blocks(file: IO[bytes], first: int, count_bytes: int) -> Iterator[bytes]:
    with file:
        file.seek(first)
        while count_bytes > 0 and (block := file.read(min(BLOCK_BYTES, count_bytes))):
            count_bytes -= len(block)
            yield block
