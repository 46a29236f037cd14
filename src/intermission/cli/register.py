"""`intermission register`: make a worker known to a server, and get its key."""

from __future__ import annotations

from typing import Annotated

import typer

from intermission.cli.command import say
from intermission.cli.options import AsJson, Can, ServerUrl, Verbose, open_app


def register(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What the worker is called in lists.")
    ],
    server: ServerUrl = None,
    can: Can = None,
    expires_days: Annotated[
        float | None, typer.Option(metavar="DAYS", min=0.01, help="When its key ends.")
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Register a worker with a server.

    Its key is printed on standard output, once: give it to the worker as INTERMISSION_SERVER_KEY.
    Needs the server's admin secret.
    """
    from intermission.cli.jsonout import emit
    from intermission.errors import UsageError
    from intermission.operations.worker import register_worker

    settings = open_app(verbose, server=server, can=tuple(can) if can else None).settings
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
