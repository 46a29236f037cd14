"""The workers of a fleet as people see them, and their keys: listed, rotated, revoked.

With a server, it is asked; else its registry is opened, which lies beside the ledger. What is
shown or done here decides no lease.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager

from intermission.backends.http.api_client import segment
from intermission.backends.registry.keys import mint
from intermission.composition.event_log import timestamp
from intermission.composition.fleet import Fleet
from intermission.composition.registries import open_registry
from intermission.errors import NotFound, UsageError
from intermission.operations.documents import (
    RefusedDocument,
    WorkerDocument,
    WorkerList,
    WorkerState,
    when,
)
from intermission.ports.registry import KeyRow, Registry, WorkerRow
from intermission.settings import Settings

OFFLINE_MS = 5 * 60 * 1000
"""Without a heartbeat for so long a worker counts as offline."""


def state_of(row: WorkerRow, now_ms: int) -> WorkerState:
    """`busy` has no free slot, `active` some, `idle` nothing to do."""
    if row.revoked_ms is not None:
        return "disabled"
    if row.heard_ms is None or now_ms - row.heard_ms > OFFLINE_MS:
        return "offline"
    if row.busy == 0:
        return "idle"
    return "busy" if row.busy >= row.slots else "active"


def worker_list(fleet: Fleet, registry: Registry | None) -> WorkerList:
    """The registered workers, of those that hold a lease every other, and what hosts refused."""
    now_ms = fleet.app.clock.now_ms()
    rows = [] if registry is None else registry.workers()
    known = {row.id for row in rows}
    # In the ledger a registered worker's processes are named after its id: `id/process`.
    others = (name for name in fleet.ledger.workers() if name.partition("/")[0] not in known)
    return WorkerList(
        workers=[_registered(row, now_ms) for row in rows] + [_holder(name) for name in others],
        refused=[
            RefusedDocument(
                host=one.host,
                code=one.code,
                message=one.message,
                tasks=one.tasks,
                until=timestamp(one.until_ms),
            )
            for one in fleet.ledger.refusals()
        ],
    )


def _registered(row: WorkerRow, now_ms: int) -> WorkerDocument:
    return WorkerDocument(
        id=row.id,
        name=row.name,
        state=state_of(row, now_ms),
        can=list(row.can),
        version=row.version,
        slots=row.slots,
        busy=row.busy,
        registered=timestamp(row.registered_ms),
        heard=when(row.heard_ms),
    )


def _holder(name: str) -> WorkerDocument:
    """A worker that is known by its leases alone."""
    unknown = dict.fromkeys(("id", "version", "slots", "busy", "registered", "heard"))
    return WorkerDocument(name=name, state="busy", can=[], **unknown)


def new_key(
    registry: Registry, id: str, *, now_ms: int, keep_s: float = 0.0, expires_s: float | None = None
) -> tuple[str, KeyRow]:
    """A new key for a worker; those it has go on for `keep_s`. Raises `NotFound`."""
    key, kept = mint(expires_ms=None if expires_s is None else now_ms + round(expires_s * 1000))
    if not registry.rotate(id, kept, old_until_ms=now_ms + round(keep_s * 1000)):
        raise no_worker(id)
    return key, kept


def no_worker(id: str) -> NotFound:
    return NotFound(
        f"there is no worker {id}.",
        remedy="`intermission workers` lists them, and so does GET /api/v1/workers.",
    )


def list_workers(settings: Settings) -> WorkerList:
    """Who works for a fleet, and what hosts can't run for now."""
    if settings.server is not None:
        from intermission.composition.server_client import api_client

        listed = api_client(settings).ask("listing the workers", "GET", "/workers")
        return WorkerList.model_validate(listed)
    fleet = Fleet(settings)
    with closing(open_registry(settings)) as registry:
        return worker_list(fleet, registry)


def rotate_key(
    settings: Settings, id: str, *, keep_s: float = 0.0, expires_s: float | None = None
) -> str:
    """A worker's new key, which is never shown again."""
    with _usage():
        if settings.server is not None:
            from intermission.composition.server_client import api_client

            asked = {"keep_s": keep_s, "expires_s": expires_s}
            path = f"/workers/{segment(id)}/rotate"
            client = api_client(settings)
            return client.ask("rotating the key", "POST", path, asked, patience_s=0)["key"]
        now_ms = Fleet(settings).app.clock.now_ms()
        with closing(open_registry(settings)) as registry:
            key, _ = new_key(registry, id, now_ms=now_ms, keep_s=keep_s, expires_s=expires_s)
            return key


def revoke_worker(settings: Settings, id: str) -> None:
    """Disable a worker, from its next call on."""
    with _usage():
        if settings.server is not None:
            from intermission.composition.server_client import api_client

            path = f"/workers/{segment(id)}"
            api_client(settings).ask("revoking the worker", "DELETE", path)
            return
        now_ms = Fleet(settings).app.clock.now_ms()
        with closing(open_registry(settings)) as registry:
            if not registry.revoke(id, at_ms=now_ms):
                raise no_worker(id)


@contextmanager
def _usage() -> Generator[None, None, None]:
    """A worker that is not there was named wrongly."""
    try:
        yield
    except NotFound as e:
        raise UsageError(e.message, remedy=e.remedy) from e
