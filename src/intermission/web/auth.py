"""Who calls: a registered worker by its key, the administrator by the secret, or this machine.

401 answers credentials that are missing or wrong; 403 answers good ones that are not enough.

The public API is open to this machine alone, or to whoever has the secret; the worker API to keys.
Nothing here decides about leases but whose they are.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import SecretStr
from starlette.requests import Request

from intermission import __version__
from intermission.operations.held_tasks import Worker
from intermission.operations.worker_keys import KeyRefused, WorkerKeys
from intermission.operations.worker_protocol import work_schema as wire
from intermission.web.problems import Problem

_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_REMEDY = (
    "Send the server's admin_secret as `Authorization: Bearer`; commands take it from "
    "INTERMISSION_ADMIN_SECRET."
)
_BEARER = HTTPBearer(
    scheme_name="adminSecret", auto_error=False, description="The setting `admin_secret`."
)

Given = Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]


def secret_of(secret: SecretStr | None) -> str:
    """The secret as text; "" where none is set."""
    return "" if secret is None else secret.get_secret_value()


def admin_only(secret: SecretStr | None) -> Callable[[Given], None]:
    """A dependency that lets nobody pass without the secret, if there is one."""
    expected = secret_of(secret).encode()

    def check(given: Given) -> None:
        if expected:
            _require(None if given is None else given.credentials, expected)

    return check


def _require(given: str | None, secret: bytes) -> None:
    if given is None:
        raise Problem(
            401,
            "The admin secret is needed",
            "the call has no admin secret.",
            remedy=_REMEDY,
            headers=_CHALLENGE,
        )
    if WorkerKeys.is_key(given):
        raise Problem(
            403,
            "A worker's key is not enough",
            "this call needs the admin secret; a worker's key opens the worker API alone.",
            remedy=_REMEDY,
        )
    if not hmac.compare_digest(given.encode(errors="replace"), secret):
        raise Problem(
            401,
            "Wrong admin secret",
            "the secret that was sent is not the server's admin_secret.",
            remedy="Send the secret that the server was started with.",
            headers=_CHALLENGE,
        )


class Keys:
    """Tells callers by what they send."""

    def __init__(self, workers: WorkerKeys, secret: SecretStr | None) -> None:
        self._workers = workers
        self._secret = secret_of(secret).encode()

    def caller(self, request: Request) -> Worker:
        """A worker or the administrator; raises `Problem` for anybody else."""
        check_version(request.headers.get(wire.PROGRAM_HEADER))
        given = _bearer(request)
        if given is None:
            raise Problem(
                401,
                "A key is needed",
                "the call has no key.",
                remedy="Give a worker's key as INTERMISSION_SERVER_KEY, or the server's secret as "
                "INTERMISSION_ADMIN_SECRET. `intermission register` makes a key.",
                headers=_CHALLENGE,
            )
        if not self._workers.is_key(given):
            return self.admin(request)
        try:
            worker = self._workers.worker(given)
        except KeyRefused as e:
            raise Problem(401, e.title, str(e), remedy=e.remedy, headers=_CHALLENGE) from e
        return Worker(worker.id, worker.lease_secret)

    def admin(self, request: Request) -> Worker:
        """The administrator alone."""
        if not self._secret:
            raise Problem(
                503,
                "The server has no admin secret",
                "this needs the admin secret, and none is set.",
                remedy="Set admin_secret (INTERMISSION_ADMIN_SECRET) on the server, restart it.",
            )
        _require(_bearer(request), self._secret)
        return Worker("", hashlib.sha256(b"lease:" + self._secret).digest())


def check_version(version: str | None) -> None:
    """Refuse a program of another minor version: its calls may mean something else by now."""
    if version is None or _minor(version) == _minor(__version__):
        return
    wanted = ".".join(_minor(__version__))
    raise Problem(
        426,
        "Another version of the program is needed",
        f"the server is version {__version__}, the caller {version[:40]!r}.",
        remedy=f"Install intermission {wanted} on the worker and start it again.",
        headers={"Upgrade": f"intermission/{wanted}", "Connection": "Upgrade"},
    )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _bearer(request: Request) -> str | None:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" and given.strip() else None
