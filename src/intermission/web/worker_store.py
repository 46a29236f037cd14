"""The files of a job over HTTP, for the commands of an operator: its store and its outputs.

They need the admin secret. A key in a URL is spelled as object services spell it, without control
characters, and is checked before anything is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote_to_bytes

from anyio import to_thread
from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from intermission.composition.fleet import Fleet
from intermission.errors import AlreadyExists, NotFound
from intermission.operations.job_files import (
    Opened,
    OpenJobs,
    Stat,
    Store,
    checked_key,
    key_in_url,
)
from intermission.operations.worker_protocol import rpc_schema
from intermission.web.auth import Keys
from intermission.web.problems import Problem, problem_of
from intermission.web.request_body import parse, read_body
from intermission.web.transfer import received, sent
from intermission.web.worker_ledger import SMALL_BYTES

OBJECT_MAX_BYTES = 256 * 1024**3
READ_MAX_BYTES = 64 * 1024**2
"""Of an object in a remote store that is read whole into memory."""

Area = Annotated[Literal["store", "outputs"], Path()]
JobKey = Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
Key = Annotated[str, Path(max_length=4096)]

_JOB = f"{rpc_schema.API}/jobs/{{job}}"
_OBJECT = f"{_JOB}/{{area}}/{{key:path}}"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def add_files(
    router: APIRouter, fleet: Fleet, keys: Keys, *, max_bytes: int = OBJECT_MAX_BYTES
) -> None:
    """The endpoints of the files of jobs."""
    shelf = OpenJobs(fleet)
    _add_listing(router, shelf, keys)
    _add_objects(router, shelf, keys)
    _add_writes(router, shelf, keys, max_bytes)


def _add_listing(router: APIRouter, shelf: OpenJobs, keys: Keys) -> None:
    @router.get(
        f"{_JOB}/{{area}}",
        include_in_schema=False,
        response_class=Response,
    )
    def listing(
        request: Request,
        job: JobKey,
        area: Area,
        prefix: Annotated[str, Query(max_length=4096)] = "",
    ) -> Response:
        """Every object whose key starts with a prefix, in key order, one JSON object a line."""
        keys.operator(request)
        lines = _lines(shelf.opened(job).area(area).list(prefix))
        first = list(islice(lines, 1))  # so that what is wrong shows before the answer begins
        return StreamingResponse(chain(first, lines), media_type="application/x-ndjson")

    @router.post(
        f"{_JOB}/{{area}}",
        include_in_schema=False,
        status_code=204,
    )
    async def move(request: Request, job: JobKey, area: Area) -> Response:
        """Rename an object. A repeat finds it moved."""

        def act(body: bytes) -> None:
            keys.operator(request)
            asked = parse(rpc_schema.Move, body)
            key, to = checked_key(asked.key), checked_key(asked.to)
            shelf.opened(job).area(area).move(key, to)

        body = await read_body(request, SMALL_BYTES)
        await to_thread.run_sync(act, body)
        return Response(status_code=204)


def _add_objects(router: APIRouter, shelf: OpenJobs, keys: Keys) -> None:
    @router.get(
        _OBJECT,
        include_in_schema=False,
        response_class=Response,
    )
    def get(
        request: Request,
        job: JobKey,
        area: Area,
        key: Key,
        sha256: Annotated[str | None, Query(pattern=r"^[0-9a-f]{64}$")] = None,
        size_bytes: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    ) -> Response:
        """An object, or a range of it. One in a bucket that is large needs its hash and size."""
        keys.operator(request)
        name = _key(request, key)
        opened = shelf.opened(job)
        store = opened.area(area)
        stat = store.stat(name)
        if stat is None:
            raise NotFound(f"there is no object {name} in {area}.")
        path = store.local_path(name)
        if path is not None:
            return sent(request, path, _headers(stat))
        if sha256 is None or size_bytes is None:
            return _read_whole(store, stat)
        copy = opened.spool / f"sent-{os.urandom(8).hex()}"
        try:
            store.fetch(name, copy, size_bytes=size_bytes, sha256=sha256)
            return sent(request, copy, _headers(stat))
        finally:
            copy.unlink(missing_ok=True)

    @router.head(_OBJECT, include_in_schema=False)
    def head(request: Request, job: JobKey, area: Area, key: Key) -> Response:
        keys.operator(request)
        stat = shelf.opened(job).area(area).stat(_key(request, key))
        if stat is None:
            return Response(status_code=404, headers={rpc_schema.MISSING_HEADER: "object"})
        return Response(headers=_headers(stat) | {"Content-Length": str(stat.size_bytes)})


def _add_writes(router: APIRouter, shelf: OpenJobs, keys: Keys, max_bytes: int) -> None:
    @router.put(
        _OBJECT,
        include_in_schema=False,
        status_code=201,
        response_class=Response,
    )
    async def put(request: Request, job: JobKey, area: Area, key: Key) -> Response:
        """Write an object. `If-None-Match: *` creates it, `If-Match` insists on a version."""
        if_version = _if_match(request)
        is_new = request.headers.get("if-none-match") == "*"

        def enter() -> tuple[str, Opened, Store]:
            keys.operator(request)
            name = _key(request, key)
            opened = shelf.opened(job)
            return name, opened, opened.area(area)

        name, opened, store = await to_thread.run_sync(enter)

        def write(body: Any) -> Stat:
            if is_new:
                return store.create(name, body)
            with _conditions(if_version):
                return store.replace(name, body, if_version=if_version)

        async with received(request, opened.spool, max_bytes) as body:
            stat = await to_thread.run_sync(write, body)
        content = rpc_schema.stats.dump_json(stat)
        return Response(content, 201, _headers(stat), media_type="application/json")

    @router.delete(
        _OBJECT,
        include_in_schema=False,
        status_code=204,
    )
    def delete(request: Request, job: JobKey, area: Area, key: Key) -> Response:
        """Remove an object; one that is not there is no error."""
        keys.operator(request)
        name = _key(request, key)
        shelf.opened(job).area(area).delete(name)
        return Response(status_code=204)


def _key(request: Request, text: str) -> str:
    """The key that a URL spells. Raises what is answered with 4xx for what is none.

    The whole path is looked at, since a router may leave a line feed at its end out of `text`.
    """
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    try:
        is_clean = not _CONTROL.search(unquote_to_bytes(raw).decode())
    except UnicodeDecodeError:
        is_clean = False
    if is_clean:
        return key_in_url(text)
    raise Problem(
        400,
        "The name is no key",
        "a key in a URL is UTF-8 and holds no control character.",
        remedy="Write a control character as %0A, and percent-encode that for the URL.",
    )


@contextmanager
def _conditions(if_version: str | None) -> Generator[None, None, None]:
    """A condition on a version that fails is 412, so that it is told from a name that is taken."""
    try:
        yield
    except AlreadyExists as e:
        if if_version is None:
            raise
        problem = problem_of(e)
        problem.status = 412
        raise problem from e


def _if_match(request: Request) -> str | None:
    given = request.headers.get("if-match")
    if given is None:
        return None
    return unquote_to_bytes(given.strip().strip('"')).decode(errors="replace")


def _etag(version: str) -> str:
    return f'"{quote(version, safe=":")}"'


def _headers(stat: Stat) -> dict[str, str]:
    return {"ETag": _etag(stat.version), rpc_schema.MODIFIED_HEADER: str(stat.modified_ms)}


def _read_whole(store: Store, stat: Stat) -> Response:
    if stat.size_bytes > READ_MAX_BYTES:
        raise Problem(
            413,
            "The object is too large",
            f"it has {stat.size_bytes} bytes, and at most {READ_MAX_BYTES} are read at once.",
            remedy="Ask for it with its sha256 and size_bytes.",
        )
    body = store.read(stat.key)
    return Response(body, headers=_headers(stat), media_type="application/octet-stream")


def _lines(found: Iterator[Stat]) -> Iterator[bytes]:
    for stat in found:
        yield rpc_schema.stats.dump_json(stat) + b"\n"
