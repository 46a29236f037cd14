"""Who calls the worker API: a registered worker by its key, or the administrator by the secret.

Keys are looked up at every call, so that one that was revoked or rotated away fails at the next.
Nothing here decides about leases but whose they are.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from pydantic import SecretStr
from starlette.requests import Request

from intermission import __version__
from intermission.backends.http.rpc_schema import VERSION_HEADER
from intermission.backends.registry.keys import KEY_START, opens, prefix_of
from intermission.ports.clock import Clock
from intermission.ports.registry import Registry, WorkerRow
from intermission.web.problems import Problem

_REGISTER = "Register the worker with POST /api/v1/workers and use the key it answers."
_CHALLENGE = {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True)
class Caller:
    """Whoever calls: a worker, or the administrator, for whom `worker` is None."""

    worker: WorkerRow | None = None
    secret: bytes = b""
    """Signs the lease tokens that this caller is given."""

    @property
    def name(self) -> str:
        return "" if self.worker is None else self.worker.id


class Keys:
    """Tells callers by what they send."""

    def __init__(self, registry: Registry, secret: SecretStr | None, clock: Clock) -> None:
        self._registry = registry
        self._secret = b"" if secret is None else secret.get_secret_value().encode()
        self._clock = clock

    def caller(self, request: Request) -> Caller:
        """A worker or the administrator; raises `Problem` for anybody else."""
        check_version(request.headers.get(VERSION_HEADER))
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
        if not given.startswith(KEY_START):
            return self.admin(request)
        worker = self._worker(given)
        return Caller(worker, worker.lease_secret)

    def visitor(self, request: Request) -> bool:
        """Anybody, where the server has no secret and so answers to this machine alone."""
        if self._secret or _bearer(request) is not None:
            return False
        check_version(request.headers.get(VERSION_HEADER))
        return True

    def operator(self, request: Request) -> None:
        """A command of the administrator; raises `Problem` for anybody else."""
        if self.caller(request).worker is not None:
            raise Problem(
                403,
                "Not for workers",
                "this needs the admin secret, and what was sent is a worker's key.",
                remedy="Send the secret that the server was started with.",
            )

    def admin(self, request: Request) -> Caller:
        """The administrator alone."""
        if not self._secret:
            raise Problem(
                503,
                "The server has no admin secret",
                "this needs the admin secret, and none is set.",
                remedy="Set admin_secret (INTERMISSION_ADMIN_SECRET) on the server, restart it.",
            )
        given = _bearer(request)
        if given is None:
            raise Problem(
                401,
                "The admin secret is needed",
                "the call has no secret.",
                remedy="Send `Authorization: Bearer`, and the server's admin_secret.",
                headers=_CHALLENGE,
            )
        if not hmac.compare_digest(given.encode(errors="replace"), self._secret):
            raise Problem(
                403,
                "The admin secret is wrong",
                "this needs the server's admin_secret, and what was sent is another.",
                remedy="Send the secret that the server was started with.",
            )
        return Caller(secret=hashlib.sha256(b"lease:" + self._secret).digest())

    def _worker(self, given: str) -> WorkerRow:
        prefix = prefix_of(given)
        found = self._registry.find(prefix) if prefix is not None else None
        if found is None or not opens(given, found[1]):
            raise Problem(
                401, "The key is unknown", "no worker has it.", remedy=_REGISTER, headers=_CHALLENGE
            )
        worker, key = found
        if worker.revoked_ms is not None:
            raise Problem(
                401,
                "The worker is disabled",
                f"worker {worker.id} was revoked.",
                remedy=_REGISTER,
                headers=_CHALLENGE,
            )
        if key.expires_ms is not None and key.expires_ms <= self._clock.now_ms():
            raise Problem(
                401,
                "The key has expired",
                f"the key {key.prefix} of worker {worker.id} opens nothing any more.",
                remedy=f"Get a new one with POST /api/v1/workers/{worker.id}/rotate.",
                headers=_CHALLENGE,
            )
        return worker


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
