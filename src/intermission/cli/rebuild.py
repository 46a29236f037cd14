"""`intermission rebuild`: a new ledger from receipts alone."""

from __future__ import annotations

from typing import Annotated

import typer

from intermission.cli import options
from intermission.cli.jsonout import emit


def rebuild(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A source with a workspace.")],
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
) -> None:
    """Make a source's ledger anew from its receipts. The old file is kept aside.

    For a ledger that is damaged or lost; `run` does what is left.
    """
    from intermission.composition.locations import as_location

    place = as_location(source)
    jobs = options.open_app(ctx).rebuild(place)
    if as_json:
        found = [{"job": key, **one._asdict()} for key, one in jobs.items()]
        emit({"event": "rebuilt", "source": str(place), "jobs": found})
        return
    for key, one in jobs.items():
        print(f"{key[:10]}  {one.done} of {one.total} known tasks are finished")
