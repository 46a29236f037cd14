"""Outputs over HTTP: what a job made, under the names that people find it by.

The hash of a file is its entity tag. What a pipeline made may come from anybody: nothing here is
sent as a page that a browser would run.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Header, Path, Request
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from intermission.composition.fleet import Fleet
from intermission.model import FileRef
from intermission.operations.content_types import BINARY, type_of
from intermission.operations.documents import OutputList
from intermission.operations.published_outputs import OutputFile, PublishedOutputs, documents_of
from intermission.web.api.jobs import JobKey, job_row
from intermission.web.problems import Problem, documented
from intermission.web.transfer import wanted_range

RANGES_MAX = 16
"""In one request: a player asks for one, and many small ones cost more than they give."""

_RANGE_PROBLEMS = {400: "The range cannot be read", 416: "The range is beyond the end"}
Name = Annotated[str, Path(max_length=1024, description="As the list of outputs has it.")]
IS_BYTES = {"content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}}


def outputs_router(fleet: Fleet) -> APIRouter:
    router = APIRouter(tags=["outputs"], responses=documented(404))
    published = PublishedOutputs(fleet)

    @router.get("/jobs/{key}/outputs", operation_id="listOutputs")
    def outputs(key: JobKey) -> OutputList:
        """List the files that a job has made so far."""
        return OutputList(outputs=documents_of(published.of(job_row(fleet, key))))

    @router.get(
        "/jobs/{key}/outputs/{name:path}",
        operation_id="getOutput",
        response_class=Response,
        responses={
            200: {"description": "The file", **IS_BYTES},
            206: {"description": "The ranges that were asked for", **IS_BYTES},
            304: {"description": "The client has it"},
            **documented(400, 409, 416),
        },
    )
    @router.head("/jobs/{key}/outputs/{name:path}", include_in_schema=False)
    def output(
        request: Request,
        key: JobKey,
        name: Name,
        if_none_match: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Download a file, or a range of it."""
        row = job_row(fleet, key)
        found = published.of(row).get(name)
        if found is None:
            raise Problem(
                404,
                "No such output",
                f"job {key[:10]} has no output of that name.",
                remedy=f"GET /api/v1/jobs/{key}/outputs lists them.",
            )
        _, file = found
        headers = {
            "etag": f'"{file.sha256}"',
            "cache-control": "private, no-cache",
            "content-security-policy": "sandbox; default-src 'none'",
        }
        if if_none_match is not None and _names(if_none_match, headers["etag"]):
            return Response(status_code=304, headers=headers)
        opened = published.open(row, file)
        path = opened.path
        if path is None:
            headers["content-disposition"] = attachment(PurePosixPath(name).name)
            return _streamed(request, opened, file, type_of(name), headers)
        return _Sent(
            path, media_type=type_of(name), filename=PurePosixPath(name).name, headers=headers
        )

    return router


def _names(if_none_match: str, etag: str) -> bool:
    """Whether this version is among those that a client has; a weak one is as good here."""
    return if_none_match.strip() == "*" or etag in (
        one.strip().removeprefix("W/") for one in if_none_match.split(",")
    )


class _Sent(FileResponse):
    """A file; a range of it that cannot be had is a problem like any other."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = None
        if Headers(scope=scope).get("range", "").count(",") >= RANGES_MAX:
            refused = Problem(
                416,
                "Too many ranges",
                f"at most {RANGES_MAX} ranges are sent at once.",
                remedy="Ask for fewer, or for the whole file.",
            )

        async def watched(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] in _RANGE_PROBLEMS:
                refused = Problem(
                    message["status"],
                    _RANGE_PROBLEMS[message["status"]],
                    "the header Range names no bytes that the file has.",
                    remedy="Ask for bytes=FIRST-LAST, or for the whole file.",
                )
            if refused is None:
                await send(message)

        if refused is None:
            await super().__call__(scope, receive, watched)
        if refused is not None:
            await refused.response()(scope, receive, send)


def attachment(name: str) -> str:
    """A file to keep and not to show, whatever its name is made of."""
    return f"attachment; filename*=utf-8''{quote(name, safe='')}"


def _streamed(
    request: Request, opened: OutputFile, file: FileRef, media_type: str, headers: dict[str, str]
) -> Response:
    """An artifact that is not on this machine, or one range of it, passed on as it is read.

    Several ranges at once are answered with the whole file, which HTTP allows.
    """
    wanted = wanted_range(request, file.size_bytes, headers["etag"])
    first, last = wanted or (0, file.size_bytes - 1)
    headers |= {"accept-ranges": "bytes", "content-length": str(last + 1 - first)}
    if wanted is not None:
        headers["content-range"] = f"bytes {first}-{last}/{file.size_bytes}"
    status = 200 if wanted is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=media_type)
    blocks = opened.blocks(first, last + 1)
    return StreamingResponse(blocks, status, headers, media_type)
