"""`intermission submit`: jobs into a shared ledger, for its workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intermission.cli import options
from intermission.cli.command import say
from intermission.cli.formatting import near, skipped_text
from intermission.cli.jsonout import emit
from intermission.cli.pipeline_commands import split_words
from intermission.errors import IntermissionError, UsageError

if TYPE_CHECKING:
    from intermission.composition.fleet import Fleet
    from intermission.composition.locations import Location
    from intermission.operations.documents import SubmittedJob
    from intermission.pipeline import Pipeline


def submit(
    ctx: typer.Context,
    pipeline: options.PipelineName,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Files, folders, URLs or quoted patterns, and the pipeline's own --options.",
        ),
    ],
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    param: options.Params = None,
    include: options.Include = None,
    priority: options.Priority = 0,
    not_before: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Begin no sooner: 2026-01-31T20:00, local time unless it says Z."
        ),
    ] = None,
    output_dir: options.OutputDir = None,
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
) -> int:
    """Put jobs into a shared ledger, and leave the work to its workers.

    A job that is there already is not put there twice; what had failed of it starts again. The
    keys of the jobs are printed on standard output.
    """
    options.refuse_option(pipeline)
    settings = options.open_app(ctx).settings
    from intermission.composition.fleet import Fleet

    fleet = Fleet(settings)
    loaded = fleet.app.catalog.add(pipeline)
    places, own = split_words(sources, loaded)
    if not places:
        raise UsageError("no source is given.", remedy="Name files or folders to run it over.")
    params = {**options.parse_params(param), **own}
    loaded.bind(params)
    found = fleet.app.sources(places, include or (), loaded)
    if found.skipped:
        say(skipped_text(found.skipped))
    how = {"priority": priority, "not_before_ms": _moment(not_before)}
    return _submit_all(fleet, loaded, found.sources, params, how, as_json)


def _moment(text: str | None) -> int:
    """A time as a person writes it, in milliseconds since 1970; none is at once."""
    if text is None:
        return 0
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError as e:
        raise UsageError(
            f"{text!r} is no time.", remedy="Write it as 2026-01-31T20:00, or with Z for UTC."
        ) from e


def _submit_all(
    fleet: Fleet,
    pipeline: Pipeline,
    places: Sequence[Location],
    params: dict[str, str],
    how: dict[str, Any],
    as_json: bool,
) -> int:
    from intermission.cli.command import complain
    from intermission.operations.documents import SubmittedDocument
    from intermission.operations.submit import submit_each

    documents: list[SubmittedJob] = []
    failed: IntermissionError | None = None
    for one in submit_each(fleet, pipeline, places, params, **how):
        documents.append(one.document())
        if one.error is not None:
            failed = one.error
            complain(f"{near(one.place)}: {one.error}")
        elif not as_json:
            print(one.key)
    if as_json:
        emit({"event": "submitted"}, SubmittedDocument(jobs=documents))
    if failed is None:
        return 0
    return failed.exit_code if len(places) == 1 else 3
