"""`intermission failures`: what failed for good in a shared ledger; once more with all of it."""

from __future__ import annotations

from typing import Annotated

import typer

from intermission.cli.command import say
from intermission.cli.options import AsJson, LedgerUrl, ServerUrl, Verbose, open_app

MESSAGE_MAX = 60


def failures(
    pipeline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only of this pipeline.")
    ] = None,
    step: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this step.")] = None,
    error: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only with this error, such as TimedOut.")
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Put all of these back, for the workers to try again.")
    ] = False,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """List what failed for good, grouped by what went wrong.

    Over all jobs of a shared ledger, most frequent first. With --retry they get a fresh set of
    attempts, and whatever was cancelled because of them goes on.
    """
    from intermission.cli.formatting import count, table
    from intermission.cli.jsonout import emit
    from intermission.composition.event_log import timestamp
    from intermission.composition.fleet import Fleet
    from intermission.operations.failures import failure_groups, put_back_all

    shared = Fleet(open_app(verbose, ledger=ledger, server=server).settings).ledger
    wanted = {"pipeline": pipeline, "step": step, "error": error}
    groups = failure_groups(shared, **wanted)
    if as_json:
        fields = [
            {
                "pipeline": one.pipeline,
                "step": one.step,
                "error": one.error,
                "count": one.count,
                "message": one.message,
                "last": timestamp(one.last_ms),
                "jobs": list(one.tasks),
            }
            for one in groups
        ]
        emit({"event": "failures", "failures": fields})
    elif groups:
        rows = [
            (one.count, one.pipeline, one.step, one.error, _short(one.message)) for one in groups
        ]
        print(table(("COUNT", "PIPELINE", "STEP", "ERROR", "LATEST MESSAGE"), rows))
    if retry:
        say(f"{count(put_back_all(shared, groups), 'task')} put back")


def _short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= MESSAGE_MAX else f"{line[: MESSAGE_MAX - 1]}…"
