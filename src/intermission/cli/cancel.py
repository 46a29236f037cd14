"""`intermission cancel`: nobody wants this job any more."""

from __future__ import annotations

from intermission.cli.command import say
from intermission.cli.options import (
    HERE,
    JobName,
    LedgerUrl,
    Location,
    ServerUrl,
    Verbose,
    open_app,
)


def cancel(
    job: JobName,
    place: Location = HERE,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    verbose: Verbose = False,
) -> None:
    """Cancel a job.

    Workers stop its running tasks; what is done stays done.
    `run` or `retry` take it up again.
    """
    from intermission.errors import UsageError
    from intermission.operations import find_job

    with find_job(open_app(verbose, ledger=ledger, server=server), job, place, write=True) as found:
        key = found.row.job.key
        if not found.ledger.cancel(key, reason="cancelled on request"):
            (row,) = found.ledger.jobs(key)
            raise UsageError(
                f"job {key[:10]} is {row.state} and cannot be cancelled.",
                remedy="Only a job that has not ended can.",
            )
    say(f"job {key[:10]} is cancelled")
