"""Problems: how every endpoint says no, as `application/problem+json` (RFC 9457).

A problem's `type` names the error, `detail` says what was expected and what was found, and
`remedy` what to do. An unexpected error is logged and answered without a word of its inside.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import fastapi
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from intermission.errors import (
    AlreadyExists,
    CorruptArtifact,
    EnvironmentFault,
    IntermissionError,
    NotFound,
    ParameterError,
    SourceChanged,
    SourceError,
    StalePlans,
    TaskError,
    UsageError,
    WorkspaceBusy,
)
from intermission.operations.held_tasks import NoLease
from intermission.operations.worker_protocol import work_schema as wire

MEDIA_TYPE = "application/problem+json"

RETRY_AFTER_S = 1
"""After how long to ask again when the ledger or the store gave no answer."""

_LOG = logging.getLogger(__name__)

# The first class that fits decides, so a class stands before the one it derives from.
_STATUS: tuple[tuple[type[IntermissionError], int, str], ...] = (
    (NoLease, 410, "The lease is not yours"),
    (NotFound, 404, "Not found"),
    (AlreadyExists, 409, "Already exists"),
    (StalePlans, 409, "Other plans are done by now"),
    (WorkspaceBusy, 409, "Somebody else is at work there"),
    (CorruptArtifact, 409, "The bytes are not these"),
    (ParameterError, 422, "A parameter is wrong"),
    (UsageError, 422, "The request cannot be understood"),
    (SourceChanged, 409, "The source is another by now"),
    (SourceError, 422, "The source cannot be used"),
    (TaskError, 422, "The task cannot be done"),
    (EnvironmentFault, 503, "The server cannot do this at the moment"),
)


class ProblemBody(BaseModel):
    """A problem as its receiver reads it; for the OpenAPI description."""

    type: str
    title: str
    status: int
    detail: str
    remedy: str = ""
    errors: list[dict[str, Any]] | None = None


class Problem(fastapi.HTTPException):
    """Raise it from an endpoint, or while a body is read, to answer with a status and a reason."""

    def __init__(
        self,
        status: int,
        title: str,
        detail: str = "",
        *,
        remedy: str = "",
        type: str = "about:blank",
        headers: Mapping[str, str] | None = None,
        errors: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.status = status
        self.title = title
        self.remedy = remedy
        self.type = type
        self.errors = errors

    def response(self) -> JSONResponse:
        body: dict[str, Any] = {
            "type": self.type,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "remedy": self.remedy,
        }
        if self.errors is not None:
            body["errors"] = list(self.errors)
        return JSONResponse(body, self.status, headers=self.headers, media_type=MEDIA_TYPE)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses=` of an endpoint that answers problems with these statuses."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}
    return {
        status: {"model": ProblemBody, "description": "A problem", "content": content}
        for status in statuses
    }


def kind_of(error: type[IntermissionError]) -> str:
    """The `type` of a problem that is an error of ours."""
    return wire.PROBLEM_PREFIX + error.__name__


def problem_of(error: IntermissionError) -> Problem:
    """The problem that an error of ours is to whoever asked."""
    kind = kind_of(type(error))
    status, title = next(
        ((status, title) for known, status, title in _STATUS if isinstance(error, known)),
        (500, "The server could not do this"),
    )
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 and error.retryable else {}
    return Problem(status, title, error.message, remedy=error.remedy, type=kind, headers=headers)


def install(app: FastAPI) -> None:
    """Make every error that leaves an endpoint of this app a problem."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(IntermissionError, _error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def _problem(request: Request, e: Exception) -> JSONResponse:
    assert isinstance(e, Problem)
    return e.response()


def _error(request: Request, e: Exception) -> JSONResponse:
    assert isinstance(e, IntermissionError)
    problem = problem_of(e)
    if problem.status >= 500:
        _LOG.warning("%s %s: %s", request.method, request.url.path, e)
    return problem.response()


def _invalid(request: Request, e: Exception) -> JSONResponse:
    assert isinstance(e, RequestValidationError)
    # What was sent stays out of the answer: it may be a secret, or no JSON at all.
    errors = [
        {"loc": [str(part) for part in error["loc"]], "msg": str(error["msg"])}
        for error in e.errors()
    ]
    first = errors[0] if errors else {"loc": [], "msg": "it does not fit"}
    return Problem(
        422,
        "The request does not fit",
        f"{'.'.join(first['loc'])}: {first['msg']}.",
        remedy="The API's description says what each field must be.",
        errors=errors,
    ).response()


def _http(request: Request, e: Exception) -> JSONResponse:
    assert isinstance(e, HTTPException)
    return Problem(e.status_code, str(e.detail), str(e.detail), headers=e.headers).response()


def _unexpected(request: Request, e: Exception) -> JSONResponse:
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=e)
    return Problem(
        500,
        "The server failed",
        "an error that nobody expected; the server's log has it.",
        remedy="Ask again; if it fails again, look into the server's log.",
    ).response()
