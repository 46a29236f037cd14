"""Sources over HTTP: files that a client gives to the server."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path as FilePath
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Path, Request, Response
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from intermission.composition.uploads import NAME_MAX_BYTES, Uploads, checked_name
from intermission.errors import AlreadyExists, EnvironmentFault, fault_from_os
from intermission.web.api.outputs import IS_BYTES
from intermission.web.api.submission_policy import UPLOAD_PREFIX
from intermission.web.problems import Problem, documented
from intermission.web.request_body import declared_bytes

UPLOAD_MAX_BYTES = 1024**4
_BLOCK_BYTES = 1024 * 1024

Name = Annotated[str, Path(min_length=1, max_length=NAME_MAX_BYTES)]
Sha256 = Annotated[
    str | None,
    Header(pattern=r"^[0-9a-f]{64}$", description="What the bytes must hash to, in hex."),
]


class SourceDocument(BaseModel):
    """An uploaded source. `id` is what a submission gives as its source."""

    id: str
    name: str
    size_bytes: int
    sha256: str


def sources_router(uploads: Uploads, *, upload_max_bytes: int = UPLOAD_MAX_BYTES) -> APIRouter:
    router = APIRouter(tags=["sources"])

    @router.put(
        "/sources/{name}",
        operation_id="uploadSource",
        status_code=201,
        responses={200: {"model": SourceDocument, "description": "It was there, with these bytes"}}
        | documented(400, 409, 413),
        openapi_extra={"requestBody": {"required": True, **IS_BYTES}},
    )
    async def upload(
        name: Name, request: Request, response: Response, x_content_sha256: Sha256 = None
    ) -> SourceDocument:
        """Give the server a file. A name is given once: other bytes need another name."""
        checked_name(name)
        if declared_bytes(request) > upload_max_bytes:
            raise _too_large(upload_max_bytes)
        spooled = await to_thread.run_sync(uploads.spool)
        try:
            size_bytes, digest = await _receive(request.stream(), spooled, upload_max_bytes)
            if x_content_sha256 not in (None, digest):
                raise Problem(
                    422,
                    "The bytes are not these",
                    f"expected SHA-256 {x_content_sha256}, found {digest}.",
                    remedy="Send the file again: something altered it on its way.",
                )
            is_new = await to_thread.run_sync(_keep, uploads, name, spooled, digest)
        finally:
            spooled.unlink(missing_ok=True)
        response.status_code = 201 if is_new else 200
        return SourceDocument(
            id=f"{UPLOAD_PREFIX}{name}", name=name, size_bytes=size_bytes, sha256=digest
        )

    return router


def _keep(uploads: Uploads, name: str, spooled: FilePath, digest: str) -> bool:
    """Whether the upload is a new one; the same bytes a second time are no error."""
    try:
        uploads.keep(name, spooled)
    except AlreadyExists:
        if not uploads.has(name, spooled, digest):
            raise
        return False
    return True


def _too_large(max_bytes: int) -> Problem:
    return Problem(
        413,
        "The file is too large",
        f"an upload has at most {max_bytes} bytes.",
        remedy="Put it into a bucket, and submit its URL.",
    )


async def _receive(chunks: AsyncIterator[bytes], path: FilePath, max_bytes: int) -> tuple[int, str]:
    """Write what comes in to a new file; its size and SHA-256."""
    digest = hashlib.sha256()
    size_bytes = 0
    waiting: list[bytes] = []

    def flush() -> None:
        block = b"".join(waiting)
        waiting.clear()
        digest.update(block)
        with path.open("ab") as file:
            file.write(block)

    try:
        pending_bytes = 0
        async for chunk in chunks:
            size_bytes += len(chunk)
            pending_bytes += len(chunk)
            if size_bytes > max_bytes:
                raise _too_large(max_bytes)
            waiting.append(chunk)
            if pending_bytes >= _BLOCK_BYTES:
                pending_bytes = 0
                await to_thread.run_sync(flush)
        await to_thread.run_sync(flush)
    except ClientDisconnect:
        raise Problem(
            400, "The upload was cut", "the client went away.", remedy="Send it again."
        ) from None
    except OSError as e:
        raise fault_from_os(e, "receiving a file", EnvironmentFault, where=path.parent) from e
    return size_bytes, digest.hexdigest()
