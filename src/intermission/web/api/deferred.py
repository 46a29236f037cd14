"""Deferred tasks over HTTP: the outcome of one that waits for an outside event, and its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from intermission.composition.fleet import Fleet
from intermission.errors import UsageError
from intermission.operations.documents import FinishedDocument
from intermission.operations.finish import DeferredTasks, NotWaiting, Outcome
from intermission.pipeline.context import RESULT_NAME
from intermission.web.api.outputs import IS_BYTES
from intermission.web.problems import Problem, documented, kind_of
from intermission.web.transfer import SHA256_HEADER, received

FILES = "/uploads/deferred"
"""Below the API: where files are sent, whose size is bounded while they are read."""
FILES_MAX = 1000
TOKEN_MAX = 4096
FILE_MAX_BYTES = 256 * 1024**3

Token = Annotated[str, Field(min_length=1, max_length=TOKEN_MAX)]
T = TypeVar("T")


class DeferredFile(BaseModel):
    """A file that was sent for a deferred task."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=512)
    size_bytes: int = Field(ge=0, lt=2**63)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class OutcomeBody(BaseModel):
    """A result, with the files it names; or why the work failed."""

    model_config = ConfigDict(extra="forbid")

    result: Any = Field(
        default=None,
        description="What the step would have returned, at most 64 KiB as JSON. "
        f"Left out when it is the file `{RESULT_NAME}`.",
    )
    files: list[DeferredFile] = Field(default=[], max_length=FILES_MAX)
    failed: str | None = Field(default=None, max_length=20_000)

    @field_validator("result")
    @classmethod
    def _is_json(cls, result: Any) -> Any:
        # Python's parser takes NaN and half a surrogate pair, which no receipt could hold.
        try:
            json.dumps(result, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            raise ValueError("it is no JSON value") from None
        return result

    @model_validator(mode="after")
    def _is_one(self) -> OutcomeBody:
        has_result = "result" in self.model_fields_set
        has_large = any(file.name == RESULT_NAME for file in self.files)
        if [has_result, has_large, self.failed is not None].count(True) != 1:
            raise ValueError(f"expected one of: a result, the file {RESULT_NAME}, or failed")
        return self

    @property
    def outcome(self) -> Outcome:
        if "result" not in self.model_fields_set:
            return Outcome(failed=self.failed)
        return Outcome(json.dumps(self.result, ensure_ascii=False, separators=(",", ":")))


def deferred_router(fleet: Fleet) -> APIRouter:
    router = APIRouter(tags=["deferred"])
    tasks = DeferredTasks(fleet)

    @router.post(
        "/deferred/{token:path}",
        operation_id="finishDeferred",
        responses=documented(400, 404, 409, 413),
    )
    def finish(
        token: Annotated[str, Path(min_length=1, max_length=TOKEN_MAX)], body: OutcomeBody
    ) -> FinishedDocument:
        """Finish the task that a step deferred under a token. The first outcome counts.

        Its files were sent before. The same outcome again is answered as the first was.
        """
        return _answered(lambda: tasks.finish(token, body.outcome, body.files))

    @router.put(
        FILES,
        operation_id="uploadDeferredFile",
        status_code=201,
        responses=documented(400, 404, 409, 411, 413),
        openapi_extra={
            "parameters": [
                {
                    "name": SHA256_HEADER,
                    "in": "header",
                    "required": True,
                    "description": "What the bytes hash to, in hex.",
                    "schema": {"type": "string"},
                }
            ],
            "requestBody": {"required": True, **IS_BYTES},
        },
    )
    async def upload(
        request: Request,
        token: Annotated[str, Query(min_length=1, max_length=TOKEN_MAX)],
        name: Annotated[str, Query(min_length=1, max_length=512)],
    ) -> DeferredFile:
        """Send a file of a deferred task's result, before the task is finished."""
        folder = await to_thread.run_sync(_answered, lambda: tasks.spool(token, name))
        async with received(request, folder, FILE_MAX_BYTES) as body:
            sha256 = request.headers[SHA256_HEADER]
            kept = await to_thread.run_sync(
                _answered, lambda: tasks.add_file(token, name, body, sha256)
            )
        return DeferredFile(name=name, size_bytes=kept.size_bytes, sha256=sha256)

    return router


def _answered(act: Callable[[], T]) -> T:
    try:
        return act()
    except NotWaiting as e:
        status, title = (409, "It no longer waits") if e.is_known else (404, "Nothing waits for it")
        raise Problem(status, title, e.message, remedy=e.remedy, type=kind_of(UsageError)) from e
