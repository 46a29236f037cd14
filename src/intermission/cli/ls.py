"""`intermission ls`: the jobs of a place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intermission.cli import options
from intermission.cli.command import complain
from intermission.cli.formatting import near, table
from intermission.cli.jsonout import emit, fields


def ls(
    ctx: typer.Context,
    place: options.Searched = options.HERE,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most so many.")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only in this state, such as failed. Repeatable."),
    ] = None,
    pipeline: options.OfPipeline = None,
    as_json: options.AsJson = False,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    verbose: options.Verbose = False,
) -> int:
    """List the jobs of a folder and all below it.

    Newest first for each source. Exit code 4 if a ledger cannot be read.
    """
    from itertools import islice

    from intermission.composition.locations import as_location, is_url
    from intermission.errors import EnvironmentFault, LedgerError, UsageError
    from intermission.model import JobState, TaskState
    from intermission.operations import list_jobs
    from intermission.operations.documents import ErrorDocument

    if not is_url(place) and not Path(place).is_dir():
        raise UsageError(f"{place} is not a folder.", remedy="Name the folder of the sources.")
    faults: list[tuple[object, LedgerError]] = []
    app = options.open_app(ctx)
    found = list_jobs(
        app,
        place,
        lambda path, e: faults.append((path, e)),
        states=options.parse_states(JobState, "state", state),
        pipeline=pipeline,
    )
    jobs = list(islice(found, limit))
    if as_json:
        unreadable = [
            {"source": str(path), "error": fields(ErrorDocument.of(e))} for path, e in faults
        ]
        emit({"event": "jobs", "jobs": [*map(fields, jobs)], "unreadable": unreadable})
    elif jobs:
        rows = [
            (
                one.job[:10],
                one.state,
                f"{one.total(TaskState.DONE)}/{one.total()}",
                f"{one.updated[:19]}Z",
                one.pipeline,
                near(as_location(one.source)),
            )
            for one in jobs
        ]
        print(table(("JOB", "STATE", "DONE", "UPDATED", "PIPELINE", "SOURCE"), rows))
    for _, e in faults:
        complain(str(e))
    return EnvironmentFault.exit_code if faults else 0
