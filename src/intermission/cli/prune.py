"""`intermission prune`: a shared ledger forgets jobs that ended long ago."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from intermission.cli import options
from intermission.cli.formatting import count, table
from intermission.cli.jsonout import emit, fields

if TYPE_CHECKING:
    from collections.abc import Collection

    from intermission.model import JobState
    from intermission.operations.documents import PrunedJob


def prune(
    ctx: typer.Context,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Jobs that ended longer ago: 30d, 12h, or seconds.")
    ],
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only done, failed or cancelled ones. Repeatable."),
    ] = None,
    pipeline: options.OfPipeline = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be forgotten, and forget nothing.")
    ] = False,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
) -> None:
    """Forget jobs that ended long ago.

    They leave the shared ledger, with their tasks and events. Receipts, artifacts and outputs
    stay: whoever submits such a job again finds it finished.
    """
    from intermission.operations.fleet_api import fleet_api

    age_s, states = _age_s(older_than), _states(state or ())
    fleet = fleet_api(options.open_app(ctx))
    jobs: list[PrunedJob] = []
    cursor: str | None = None
    while True:
        how = {"states": states, "pipeline": pipeline, "dry_run": dry_run}
        page = fleet.prune(age_s, **how, cursor=cursor)
        jobs += page.jobs
        cursor = page.next
        if cursor is None:
            break
    if as_json:
        emit({"event": "pruned", "dry_run": dry_run, "jobs": [fields(one) for one in jobs]})
        return
    if dry_run and jobs:
        header = ("JOB", "PIPELINE", "STATE", "ENDED", "SOURCE")
        rows = [(one.job[:10], one.pipeline, one.state, one.ended, one.source) for one in jobs]
        print(table(header, rows))
    print(f"{'would forget' if dry_run else 'forgot'} {count(len(jobs), 'job')}")


def _age_s(text: str) -> float:
    from intermission.errors import ParameterError
    from intermission.settings import seconds

    try:
        age_s = float(seconds(text))
    except ValueError:
        age_s = -1.0
    if not 0 <= age_s < float("inf"):
        raise ParameterError(
            f"{text!r} is no age.", remedy="Write --older-than 30d, 12h, 90m, or seconds."
        )
    return age_s


def _states(names: Collection[str]) -> Collection[JobState]:
    from intermission.errors import ParameterError
    from intermission.operations.fleet_api import ENDED

    chosen = [state for state in ENDED if state in names]
    if unknown := set(names) - set(ENDED):
        raise ParameterError(
            f"jobs that are {' or '.join(sorted(unknown))} are not forgotten.",
            remedy=f"Choose among {', '.join(ENDED)}.",
        )
    return chosen or ENDED
