"""`intermission watch-folder`: a job for every file that appears in a place."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from intermission.cli import options
from intermission.cli.command import complain, say
from intermission.cli.formatting import near
from intermission.cli.pipeline_commands import split_words
from intermission.errors import IntermissionError, UsageError

if TYPE_CHECKING:
    from intermission.composition.locations import Location


def watch_folder(
    ctx: typer.Context,
    pipeline: options.PipelineName,
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="PLACE", help="Folders or URLs to watch, and the pipeline's own --options."
        ),
    ],
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    param: options.Params = None,
    include: options.Include = None,
    priority: options.Priority = 0,
    every_s: Annotated[
        float | None,
        typer.Option(
            "--every-s",
            metavar="S",
            min=0.1,
            help="Time between two looks: 10, or 300 with a queue.",
        ),
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Look at these times instead: '0 2 * * *'."),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(metavar="ZONE", help="Of --cron: Europe/Berlin; else that of the machine."),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(metavar="URL", help="An SQS queue that gets the events of the bucket."),
    ] = None,
    output_dir: options.OutputDir = None,
    verbose: options.Verbose = False,
) -> None:
    """Submit a pipeline for every file that appears in a folder or bucket.

    A file is taken once it is complete: when nothing about it changed between two looks. The keys
    of the jobs are printed on standard output. With --queue, an object in S3 is taken as soon as
    the queue tells of it, and the bucket is looked at now and then besides. Ctrl-C or SIGTERM ends
    it; started again, it submits what came meanwhile, and nothing twice.
    """
    options.refuse_option(pipeline)
    settings = options.open_app(ctx).settings
    from intermission.composition.fleet import Fleet
    from intermission.services.supervisor import Supervisor
    from intermission.services.watch_scheduler import watch_of, watch_services
    from intermission.settings.watch_rules import WatchedPlace

    fleet = Fleet(settings)
    folders, own = split_words(places, fleet.app.catalog.add(pipeline))
    if not folders:
        raise UsageError("no place is given.", remedy="Name a folder or URL to watch.")
    params = {**options.parse_params(param), **own}
    how = {"pipeline": pipeline, "params": params, "priority": priority}
    when = {"every_s": every_s, "cron": cron, "timezone": timezone, "queue": queue}
    wanted = WatchedPlace.model_construct(include=include or (), **how, **when)
    watches = [watch_of(fleet, wanted.model_copy(update={"place": one})) for one in folders]
    fleet.has_job("0" * 40)  # so that a ledger that is away, or refuses us, is told in one sentence
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    say(f"watching {', '.join(folders)}")
    with Supervisor(watch_services(watches, _tell)).running():
        ended.wait()


_writing = threading.Lock()


def _tell(place: Location, became: str | IntermissionError) -> None:
    """The job's key for programs on standard output, the rest for people."""
    if isinstance(became, IntermissionError):
        complain(f"{near(place)}: {became}")
        return
    with _writing:  # a key and the end of its line are two writes
        say(f"{near(place)}: submitted")
        print(became, flush=True)
