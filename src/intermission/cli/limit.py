"""`intermission limit`, `pause`, `resume`: how much may run in a shared ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from intermission.cli.command import say
from intermission.cli.options import AsJson, LedgerUrl, ServerUrl, Verbose, open_app

if TYPE_CHECKING:
    from intermission.composition.fleet import Fleet

Bound = Annotated[
    str, typer.Argument(metavar="NAME", help="pipeline:NAME, label:NAME, or a job by its key.")
]


def limit(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="pipeline:NAME, label:NAME, or a job by its key."),
    ] = None,
    running: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="At most so many at a time.")
    ] = None,
    per_minute: Annotated[
        float | None, typer.Option(metavar="N", min=0.01, help="At most so many begun a minute.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Remove the limit.")] = False,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Limit how many tasks run of a pipeline, of a job, or with a label.

    Over all workers of a shared ledger. Without a name: list the limits.
    """
    from intermission.cli.formatting import table
    from intermission.cli.jsonout import emit
    from intermission.composition.fleet import Fleet
    from intermission.errors import UsageError
    from intermission.model import Limit

    fleet = Fleet(open_app(verbose, ledger=ledger, server=server).settings)
    if name is not None:
        if none == (running is not None or per_minute is not None):
            raise UsageError(
                "a limit needs a bound.", remedy="Give --running or --per-minute, or --none."
            )
        full = _name(fleet, name)
        fleet.ledger.limit(Limit(full, running, per_minute, _paused(fleet, full)))
    limits = fleet.ledger.limits()
    if as_json:
        fields = [
            {
                "name": one.name,
                "running": one.running,
                "per_minute": one.per_minute,
                "paused": one.paused,
            }
            for one in limits
        ]
        emit({"event": "limits", "limits": fields})
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
    name: Bound, ledger: LedgerUrl = None, server: ServerUrl = None, verbose: Verbose = False
) -> None:
    """Begin no more tasks of a job or a pipeline; those that run go on."""
    say(f"{_set_paused(name, ledger, server, verbose, True)} is paused")


def resume(
    name: Bound, ledger: LedgerUrl = None, server: ServerUrl = None, verbose: Verbose = False
) -> None:
    """Go on with a job or a pipeline that was paused."""
    say(f"{_set_paused(name, ledger, server, verbose, False)} goes on")


def _set_paused(
    name: str, ledger: str | None, server: str | None, verbose: bool, paused: bool
) -> str:
    from dataclasses import replace

    from intermission.composition.fleet import Fleet
    from intermission.model import Limit

    fleet = Fleet(open_app(verbose, ledger=ledger, server=server).settings)
    full = _name(fleet, name)
    known = next((one for one in fleet.ledger.limits() if one.name == full), Limit(full))
    fleet.ledger.limit(replace(known, paused=paused))
    return full


def _paused(fleet: Fleet, name: str) -> bool:
    return any(one.paused for one in fleet.ledger.limits() if one.name == name)


def _name(fleet: Fleet, name: str) -> str:
    """The whole name of a limit; a job may be named by its key's beginning or its source."""
    from intermission.operations import find_job

    kind, colon, rest = name.partition(":")
    if colon and kind in ("pipeline", "label"):
        return name
    with find_job(fleet.app, rest if colon and kind == "job" else name, ".") as found:
        return f"job:{found.row.job.key}"
