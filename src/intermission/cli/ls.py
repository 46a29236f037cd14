"""`intermission ls`: the jobs of a place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from intermission.model import JobState


def ls(
    place: Annotated[
        str,
        typer.Argument(metavar="PLACE", help="A folder or URL; it and all below are searched."),
    ] = HERE,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most so many.")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only in this state, such as failed. Repeatable."),
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only of this pipeline.")
    ] = None,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    verbose: Verbose = False,
) -> int:
    """List the jobs of a folder and all below it.

    Newest first for each source. Exit code 4 if a ledger cannot be read.
    """
    from itertools import islice

    from intermission.cli.formatting import near, table
    from intermission.cli.jsonout import emit, fields
    from intermission.composition.locations import as_location, is_url
    from intermission.errors import EnvironmentFault, LedgerError, UsageError
    from intermission.model import TaskState
    from intermission.operations import list_jobs
    from intermission.operations.documents import ErrorDocument

    if not is_url(place) and not Path(place).is_dir():
        raise UsageError(f"{place} is not a folder.", remedy="Name the folder of the sources.")
    faults: list[tuple[object, LedgerError]] = []
    app = open_app(verbose, ledger=ledger, server=server)
    found = list_jobs(
        app,
        place,
        lambda path, e: faults.append((path, e)),
        states=_states(state or ()),
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


def _states(given: Sequence[str]) -> list[JobState]:
    from intermission.errors import UsageError
    from intermission.model import JobState

    known = {str(state): state for state in JobState}
    for word in given:
        if word not in known:
            raise UsageError(
                f"there is no state {word!r} of a job.", remedy=f"There are: {', '.join(known)}."
            )
    return [known[word] for word in given]
