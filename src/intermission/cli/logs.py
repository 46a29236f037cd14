"""`intermission logs`: what a task wrote."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from intermission.cli.command import say
from intermission.cli.options import (
    HERE,
    AsJson,
    JobName,
    LedgerUrl,
    Location,
    ServerUrl,
    TaskName,
    Verbose,
    open_app,
)


def logs(
    job: JobName,
    task: TaskName,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", help="Which attempt; the latest unless given.")
    ] = None,
    place: Location = HERE,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    verbose: Verbose = False,
) -> None:
    """Print what a task wrote.

    Its output, its log lines, and the traceback it failed with.
    """
    from intermission.cli.jsonout import emit
    from intermission.operations import open_job

    with open_job(open_app(verbose, ledger=ledger, server=server), job, place) as found:
        log = found.log(task, attempt)
    if as_json:
        emit({"event": "log"}, log)
    elif log.attempt is None:
        said = f" It {log.state}: {log.message}" if log.message else ""
        say(f"{log.task} wrote nothing.{said}")
    else:
        say(f"attempt {log.attempt}: {log.path}")
        sys.stdout.write(log.text)
