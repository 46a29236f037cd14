"""`intermission why`: one line about a task."""

from __future__ import annotations

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


def why(
    job: JobName,
    task: TaskName,
    place: Location = HERE,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    verbose: Verbose = False,
) -> None:
    """Say in one line why a task ran, was reused, or has not run."""
    from intermission.cli.jsonout import emit
    from intermission.operations import find_job, find_task, inspect

    with find_job(open_app(verbose, ledger=ledger, server=server), job, place) as found:
        row = find_task(found, task)
        line = inspect.why(found, row)
    if as_json:
        emit({"event": "why", "task": row.name, "state": str(row.state), "why": line})
    else:
        print(f"{row.name} {line}")
