"""`intermission serve`: the JSON API over a ledger."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import typer

from intermission.cli import options
from intermission.cli.command import say

_SERVE = "intermission.web.serving:serve"
"""By its name, as an ASGI server is given an application: this layer imports nothing of it."""

_PACKAGES = ("fastapi", "starlette", "uvicorn", "prometheus_client")


def serve(
    ctx: typer.Context,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes any that is free.")
    ] = 8400,
    ledger: options.LedgerUrl = None,
    store: Annotated[
        str | None, typer.Option(metavar="PLACE", help="A folder or URL for what is uploaded.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For the ledger and the store, if none is given."),
    ] = None,
    pipelines: options.Pipelines = None,
    root: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Files below it may be submitted. Repeatable."),
    ] = None,
    verbose: options.Verbose = False,
) -> None:
    """Serve the JSON API, for as many clients as you like.

    Without any setting: a ledger and a store in ./intermission-data, for this machine alone. The
    work is done by `intermission worker`. SIGTERM or Ctrl-C end it; running work is undisturbed.
    """
    from intermission.errors import EnvironmentFault

    settings = options.open_app(ctx).settings
    try:
        run = resolve_name(_SERVE)
    except ModuleNotFoundError as e:
        if e.name not in _PACKAGES:
            raise
        raise EnvironmentFault(
            f"a server needs the package {e.name}, which is not installed.",
            remedy="pip install 'intermission[serve]'",
        ) from e
    run(
        settings,
        host=host,
        port=port,
        roots=root or (),
        on_ready=lambda address: say(f"listening on {address}"),
    )
    say("stopped")
