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
    from intermission.operations import open_job

    with open_job(open_app(verbose, ledger=ledger, server=server), job, place) as found:
        said = found.why(task)
    emit({"event": "why"}, said) if as_json else print(f"{said.task} {said.why}")
