"""`intermission limit`, `pause`, `resume`: how much may run in a shared ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from intermission.cli import options
from intermission.cli.command import say
from intermission.cli.formatting import table
from intermission.cli.jsonout import emit

if TYPE_CHECKING:
    from intermission.operations import App

_NAME = typer.Argument(metavar="NAME", help="pipeline:NAME, label:NAME, or a job by its key.")
Bound = Annotated[str, _NAME]


def limit(
    ctx: typer.Context,
    name: Annotated[str | None, _NAME] = None,
    running: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="At most so many at a time.")
    ] = None,
    per_minute: Annotated[
        float | None, typer.Option(metavar="N", min=0.01, help="At most so many begun a minute.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Remove the limit.")] = False,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
) -> None:
    """Limit how many tasks run of a pipeline, of a job, or with a label.

    Over all workers of a shared ledger. Without a name: list the limits.
    """
    from intermission.errors import UsageError
    from intermission.operations.documents import LimitList
    from intermission.operations.fleet_api import fleet_api

    app = options.open_app(ctx)
    fleet = fleet_api(app)
    if name is not None:
        if none == (running is not None or per_minute is not None):
            raise UsageError(
                "a limit needs a bound.", remedy="Give --running or --per-minute, or --none."
            )
        fleet.set_limit(_name(app, name), running, per_minute)
    limits = fleet.limits()
    if as_json:
        emit({"event": "limits"}, LimitList(limits=limits))
    elif limits:
        rows = [
            (
                one.name,
                "-" if one.running is None else one.running,
                "-" if one.per_minute is None else f"{one.per_minute:g}",
                "yes" if one.paused else "no",
            )
            for one in limits
        ]
        print(table(("NAME", "RUNNING", "PER MINUTE", "PAUSED"), rows))


def pause(
    ctx: typer.Context,
    name: Bound,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    verbose: options.Verbose = False,
) -> None:
    """Begin no more tasks of a job or a pipeline; those that run go on."""
    say(f"{_set_paused(ctx, name, True)} is paused")


def resume(
    ctx: typer.Context,
    name: Bound,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    verbose: options.Verbose = False,
) -> None:
    """Go on with a job or a pipeline that was paused."""
    say(f"{_set_paused(ctx, name, False)} goes on")


def _set_paused(ctx: typer.Context, name: str, paused: bool) -> str:
    from intermission.operations.fleet_api import fleet_api

    app = options.open_app(ctx)
    full = _name(app, name)
    fleet_api(app).set_paused(full, paused)
    return full


def _name(app: App, name: str) -> str:
    """The whole name of a limit; a job may be named by its key's beginning or its source."""
    from intermission.operations import open_job

    kind, colon, rest = name.partition(":")
    if colon and kind in ("pipeline", "label"):
        return name
    with open_job(app, rest if colon and kind == "job" else name, options.HERE) as found:
        return f"job:{found.document().job}"
