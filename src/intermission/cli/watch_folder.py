"""`intermission watch-folder`: a job for every file that appears in a place."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from intermission.cli.options import (
    Include,
    LedgerUrl,
    OutputDir,
    Params,
    PipelineName,
    ServerUrl,
    Verbose,
    open_app,
    own_options,
    parse_params,
    refuse_option,
)


def watch_folder(
    pipeline: PipelineName,
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="PLACE", help="Folders or URLs to watch, and the pipeline's own --options."
        ),
    ],
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    param: Params = None,
    include: Include = None,
    priority: Annotated[
        int, typer.Option(metavar="N", help="Jobs with a higher number go first.")
    ] = 0,
    every_s: Annotated[
        float, typer.Option("--every-s", metavar="S", min=0.1, help="Time between two looks.")
    ] = 10.0,
    output_dir: OutputDir = None,
    verbose: Verbose = False,
) -> None:
    """Submit a pipeline for every file that appears in a folder or bucket.

    A file is taken once it is complete: when nothing about it changed between two looks. The keys
    of the jobs are printed on standard output. Ctrl-C or SIGTERM ends it; started again, it
    submits what came meanwhile, and nothing twice.
    """
    refuse_option(pipeline)
    settings = open_app(verbose, ledger=ledger, server=server, output_dir=output_dir).settings
    from intermission.app.fleet import Fleet
    from intermission.app.folder_watch import FolderWatch
    from intermission.cli.command import complain, say
    from intermission.cli.wording import near
    from intermission.errors import IntermissionError, UsageError
    from intermission.pipeline import load

    loaded = load(pipeline)
    folders, own = own_options(places, loaded)
    if not folders:
        raise UsageError("no place is given.", remedy="Name a folder or URL to watch.")
    params = {**parse_params(param), **own}
    loaded.bind(params)
    watch = FolderWatch(
        Fleet(settings), pipeline, folders, params, include=include or (), priority=priority
    )
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    say(f"watching {', '.join(folders)}")
    while True:
        for place, outcome in watch.look():
            if isinstance(outcome, IntermissionError):
                complain(f"{near(place)}: {outcome}")
            else:
                say(f"{near(place)}: submitted")
                print(outcome.key, flush=True)
        if ended.wait(every_s):
            return
