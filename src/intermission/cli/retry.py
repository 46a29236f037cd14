"""`intermission retry`: a job's failed tasks once more."""

from __future__ import annotations

from typing import Annotated

import typer

from intermission.cli.command import say
from intermission.cli.options import (
    HERE,
    AsJson,
    AsJsonLines,
    JobName,
    LedgerUrl,
    Location,
    Pipelines,
    ServerUrl,
    Verbose,
    open_app,
)


def retry(
    job: JobName,
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK", help="Only this task, such as count[7]. Repeatable."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Also what is done: it runs again from the start.")
    ] = False,
    slots: Annotated[
        int | None, typer.Option(metavar="N", help="How many tasks run at a time.")
    ] = None,
    place: Location = HERE,
    pipeline: Pipelines = None,
    as_json: AsJson = False,
    as_jsonl: AsJsonLines = False,
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    verbose: Verbose = False,
) -> int:
    """Run the failed tasks of a job again.

    They get a fresh set of attempts, and the job runs to its end. Without --task: every failed
    or cancelled task. Whatever depends on them runs again too. With a shared ledger, its workers
    go on with them.
    """
    from intermission.cli.formatting import count
    from intermission.cli.run import carry_out
    from intermission.operations import open_job, start_reaper

    app = open_app(
        verbose,
        ledger=ledger,
        server=server,
        slots=slots,
        pipelines=tuple(pipeline) if pipeline else None,
    )
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
