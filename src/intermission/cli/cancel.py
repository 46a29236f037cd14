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
    from intermission.operations import open_job

    app = open_app(verbose, ledger=ledger, server=server)
    with open_job(app, job, place, write=True) as found:
        key = found.cancel().job
    say(f"job {key[:10]} is cancelled")
