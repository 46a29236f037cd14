"""`intermission logs`: what a task wrote."""

from __future__ import annotations

import shutil
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
    from intermission.errors import UsageError
    from intermission.operations import find_job, find_task
    from intermission.operations.inspect import logs_of

    with find_job(open_app(verbose, ledger=ledger, server=server), job, place) as found:
        row = find_task(found, task)
        known = logs_of(found, row)
    if attempt is not None and attempt not in known:
        numbers = ", ".join(map(str, sorted(known))) or "none"
        raise UsageError(
            f"{row.name} has no log of attempt {attempt}.",
            remedy=f"Attempts with a log: {numbers}.",
        )
    wanted = attempt if attempt is not None else next(reversed(known), None)
    path = None if wanted is None else known[wanted]
    if as_json:
        text = "" if path is None else path.read_text(errors="replace")
        where = None if path is None else str(path)
        emit({"event": "log", "task": row.name, "attempt": wanted, "path": where, "text": text})
    elif path is None:
        said = f" It {row.state}: {row.message}" if row.message else ""
        say(f"{row.name} wrote nothing.{said}")
    else:
        say(f"attempt {wanted}: {path}")
        with path.open(errors="replace") as log:
            shutil.copyfileobj(log, sys.stdout)
