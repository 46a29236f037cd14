"""`intermission prune`: a shared ledger forgets jobs that ended long ago."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from intermission.cli.options import AsJson, LedgerUrl, ServerUrl, Verbose, open_app

if TYPE_CHECKING:
    from collections.abc import Collection

    from intermission.model import JobState


def prune(
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Jobs that ended longer ago: 30d, 12h, or seconds.")
    ],
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only done, failed or cancelled ones. Repeatable."),
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only of this pipeline.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be forgotten, and forget nothing.")
    ] = False,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Forget jobs that ended long ago.

    They leave the shared ledger, with their tasks and events. Receipts, artifacts and outputs
    stay: whoever submits such a job again finds it finished.
    """
    from intermission.cli.formatting import count, table
    from intermission.cli.jsonout import emit
    from intermission.composition.event_log import timestamp
    from intermission.composition.fleet import Fleet
    from intermission.services.retention import forget_if_old, old_jobs

    age_s, states = _age_s(older_than), _states(state or ())
    fleet = Fleet(open_app(verbose, ledger=ledger, server=server).settings)
    before_ms = fleet.app.clock.now_ms() - int(age_s * 1000)
    jobs: list[dict[str, Any]] = []
    for row in old_jobs(fleet.ledger, before_ms, states=states, pipeline=pipeline):
        if dry_run or forget_if_old(fleet.ledger, row.job.key, before_ms):
            fields = {"job": row.job.key, "pipeline": row.job.pipeline, "state": str(row.state)}
            jobs.append(
                {**fields, "source": row.job.source.uri, "ended": timestamp(row.updated_ms)}
            )
    if as_json:
        emit({"event": "pruned", "dry_run": dry_run, "jobs": jobs})
        return
    if dry_run and jobs:
        header = ("JOB", "PIPELINE", "STATE", "ENDED", "SOURCE")
        names = ("pipeline", "state", "ended", "source")
        print(table(header, [(one["job"][:10], *(one[name] for name in names)) for one in jobs]))
    print(f"{'would forget' if dry_run else 'forgot'} {count(len(jobs), 'job')}")


def _age_s(text: str) -> float:
    from math import isfinite

    from intermission.errors import ParameterError
    from intermission.settings import seconds

    try:
        age_s = float(seconds(text))
    except ValueError:
        age_s = -1.0
    if not isfinite(age_s) or age_s < 0:
        raise ParameterError(
            f"{text!r} is no age.", remedy="Write --older-than 30d, 12h, 90m, or seconds."
        )
    return age_s


def _states(names: Collection[str]) -> Collection[JobState]:
    from intermission.errors import ParameterError
    from intermission.services.retention import ENDED

    chosen = [state for state in ENDED if state in names]
    if unknown := set(names) - set(ENDED):
        raise ParameterError(
            f"jobs that are {' or '.join(sorted(unknown))} are not forgotten.",
            remedy=f"Choose among {', '.join(ENDED)}.",
        )
    return chosen or ENDED
