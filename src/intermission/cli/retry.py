"""`intermission retry`, `cancel`: a job's failed tasks once more; a job that nobody wants now."""

from __future__ import annotations

from typing import Annotated

import typer

from intermission.cli import options
from intermission.cli.command import say
from intermission.cli.formatting import count


def retry(
    ctx: typer.Context,
    job: options.JobName,
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK", help="Only this task, such as count[7]. Repeatable."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Also what is done: it runs again from the start.")
    ] = False,
    slots: options.Slots = None,
    place: options.Location = options.HERE,
    pipelines: options.Pipelines = None,
    as_json: options.AsJson = False,
    as_jsonl: options.AsJsonLines = False,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    verbose: options.Verbose = False,
) -> int:
    """Run the failed tasks of a job again.

    They get a fresh set of attempts, and the job runs to its end. Without --task: every failed
    or cancelled task. Whatever depends on them runs again too. With a shared ledger, its workers
    go on with them.
    """
    from intermission.cli.run import carry_out
    from intermission.operations import open_job, start_reaper

    app = options.open_app(ctx)
    whole = fresh and not task
    runs_here = app.server is None and (app.shared is None or whole)
    reaper = start_reaper() if runs_here else None
    try:
        with open_job(app, job, place, write=True) as found:
            known = found.document()
            if not (runs_here and whole):
                changed = found.retry(task or (), fresh=fresh)
                say(f"{count(changed, 'task')} put back")
    except BaseException:
        if reaper is not None:
            reaper.close()
        raise
    if not runs_here:
        return 0
    return carry_out(
        app,
        known.pipeline,
        [known.source],
        known.params,
        as_json=as_json,
        as_jsonl=as_jsonl,
        fresh=whole,
        expected=known.job,
        reaper=reaper,
    )


def cancel(
    ctx: typer.Context,
    job: options.JobName,
    place: options.Location = options.HERE,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    verbose: options.Verbose = False,
) -> None:
    """Cancel a job.

    Workers stop its running tasks; what is done stays done.
    `run` or `retry` take it up again.
    """
    from intermission.operations import open_job

    app = options.open_app(ctx)
    with open_job(app, job, place, write=True) as found:
        key = found.cancel().job
    say(f"job {key[:10]} is cancelled")
