"""`intermission workers`, `register`: who works for a fleet, and the keys they do it with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from intermission.cli import options
from intermission.cli.command import say
from intermission.cli.formatting import table
from intermission.cli.jsonout import emit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from intermission.operations.documents import WorkerDocument


def workers(
    ctx: typer.Context,
    revoke: Annotated[
        str | None, typer.Option(metavar="ID", help="Disable this worker, from its next call on.")
    ] = None,
    rotate: Annotated[
        str | None, typer.Option(metavar="ID", help="Give this worker a new key, printed once.")
    ] = None,
    keep_s: Annotated[
        float, typer.Option(metavar="S", min=0, help="How long its keys from before go on.")
    ] = 0.0,
    expires_days: Annotated[
        float | None, typer.Option(metavar="DAYS", min=0.01, help="When the new key ends.")
    ] = None,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
) -> None:
    """List the workers of a fleet.

    The registered ones by their heartbeats; others that hold a lease are busy. Then, which hosts
    have given tasks back because they can't run them. With --revoke or --rotate: one worker's key.
    A server is asked with its admin secret.
    """
    from intermission.errors import UsageError
    from intermission.operations.workers import list_workers, revoke_worker, rotate_key

    settings = options.open_app(ctx).settings
    if revoke is not None and rotate is not None:
        raise UsageError("one of --revoke and --rotate.", remedy="Give them one after the other.")
    if rotate is None and (keep_s or expires_days is not None):
        raise UsageError("--keep-s and --expires-days are of a new key.", remedy="Give --rotate.")
    if revoke is not None:
        revoke_worker(settings, revoke)
        say(f"worker {revoke} is disabled")
    elif rotate is not None:
        expires_s = None if expires_days is None else expires_days * 24 * 3600
        key = rotate_key(settings, rotate, keep_s=keep_s, expires_s=expires_s)
        if as_json:
            emit({"event": "rotated", "worker": rotate, "key": key})
            return
        say(f"worker {rotate} has a new key; it is not shown again")
        print(key)
    else:
        listed = list_workers(settings)
        if as_json:
            emit({"event": "workers"}, listed)
            return
        if listed.workers:
            print(_table(listed.workers))
        for one in listed.refused:
            tasks = "1 task" if one.tasks == 1 else f"{one.tasks} tasks"
            print(f"{one.host} can't run {tasks} until {one.until[:19]}Z: {one.message}")


def register(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What the worker is called in lists.")
    ],
    server: options.ServerUrl = None,
    can: options.Can = None,
    expires_days: Annotated[
        float | None, typer.Option(metavar="DAYS", min=0.01, help="When its key ends.")
    ] = None,
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
) -> None:
    """Register a worker with a server.

    Its key is printed on standard output, once: give it to the worker as INTERMISSION_SERVER_KEY.
    Needs the server's admin secret.
    """
    from intermission.errors import UsageError
    from intermission.operations.worker import register_worker

    settings = options.open_app(ctx).settings
    if settings.server is None or settings.admin_secret is None:
        raise UsageError(
            "a worker is registered with a server, by somebody who has its admin secret.",
            remedy="Give --server, and the secret as INTERMISSION_ADMIN_SECRET.",
        )
    expires_s = None if expires_days is None else expires_days * 24 * 3600
    id, key = register_worker(settings, name, expires_s=expires_s)
    if as_json:
        emit({"event": "registered", "worker": id, "key": key})
        return
    say(f"worker {id} is registered; its key is not shown again")
    print(key)


def _table(seen: Sequence[WorkerDocument]) -> str:

    rows = [
        (
            one.id or one.name,
            one.state,
            "-" if one.slots is None else f"{one.busy}/{one.slots}",
            "-" if one.heard is None else f"{one.heard[:19]}Z",
            " ".join(one.can) or "-",
        )
        for one in seen
    ]
    return table(("WORKER", "STATE", "BUSY", "HEARD", "CAN"), rows)
