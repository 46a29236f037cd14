"""`intermission failures`: what failed for good in a shared ledger; once more with all of it."""

from __future__ import annotations

from typing import Annotated

import typer

from intermission.cli import options
from intermission.cli.command import say
from intermission.cli.formatting import count, table
from intermission.cli.jsonout import emit

MESSAGE_MAX = 60


def failures(
    ctx: typer.Context,
    pipeline: options.OfPipeline = None,
    step: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this step.")] = None,
    error: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only with this error, such as TimedOut.")
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Put all of these back, for the workers to try again.")
    ] = False,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
) -> None:
    """List what failed for good, grouped by what went wrong.

    Over all jobs of a shared ledger, most frequent first. With --retry they get a fresh set of
    attempts, and whatever was cancelled because of them goes on.
    """
    from intermission.operations.documents import FailureList
    from intermission.operations.fleet_api import fleet_api

    fleet = fleet_api(options.open_app(ctx))
    wanted = {"pipeline": pipeline, "step": step, "error": error}
    groups = fleet.failures(**wanted)
    if as_json:
        emit({"event": "failures"}, FailureList(failures=groups))
    elif groups:
        rows = [
            (one.count, one.pipeline, one.step, one.error, _short(one.message)) for one in groups
        ]
        print(table(("COUNT", "PIPELINE", "STEP", "ERROR", "LATEST MESSAGE"), rows))
    if retry:
        say(f"{count(fleet.retry_failures(**wanted), 'task')} put back")


def _short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= MESSAGE_MAX else f"{line[: MESSAGE_MAX - 1]}…"
