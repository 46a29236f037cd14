"""`intermission ls`: the jobs of a place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from intermission.cli.command import complain
from intermission.cli.options import (
    HERE,
    AsJson,
    LedgerUrl,
    ServerUrl,
    Verbose,
    open_app,
)


def ls(
    place: Annotated[
        str,
        typer.Argument(metavar="PLACE", help="A folder or URL; it and all below are searched."),
    ] = HERE,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    verbose: Verbose = False,
) -> int:
    """List the jobs of a folder and all below it.

    Newest first for each source. Exit code 4 if a ledger cannot be read.
    """
    from intermission.app import all_jobs
    from intermission.app.places import is_url
    from intermission.cli.jsonout import emit, error_fields, job_fields, when
    from intermission.cli.wording import near, table
    from intermission.errors import EnvironmentFault, LedgerError, UsageError
    from intermission.model import TaskState

    if not is_url(place) and not Path(place).is_dir():
        raise UsageError(f"{place} is not a folder.", remedy="Name the folder of the sources.")
    faults: list[tuple[object, LedgerError]] = []
    documents: list[dict[str, Any]] = []
    rows: list[tuple[object, ...]] = []
    app = open_app(verbose, ledger=ledger, server=server)
    for found in all_jobs(app, place, lambda path, e: faults.append((path, e))):
        row = found.row
        documents.append(job_fields(found))
        done, total = row.total(TaskState.DONE), row.total()
        updated = (when(row.updated_ms) or "")[:19] + "Z"
        source = near(found.source)
        rows.append(
            (row.job.key[:10], row.state, f"{done}/{total}", updated, row.job.pipeline, source)
        )
    if as_json:
        unreadable = [{"source": str(path), "error": error_fields(e)} for path, e in faults]
        emit({"event": "jobs", "jobs": documents, "unreadable": unreadable})
    elif rows:
        print(table(("JOB", "STATE", "DONE", "UPDATED", "PIPELINE", "SOURCE"), rows))
    for _, e in faults:
        complain(str(e))
    return EnvironmentFault.exit_code if faults else 0
