"""`intermission finish`: the outcome of a task that waits for an outside event."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intermission.cli import options
from intermission.cli.command import say
from intermission.cli.jsonout import emit


def finish(
    ctx: typer.Context,
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="The token that the step passed to ctx.defer.")
    ],
    result: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="What the step would have returned, at most 64 KiB."),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="A file of the result, under its name. Repeatable."),
    ] = None,
    failed: Annotated[
        str | None,
        typer.Option(metavar="MESSAGE", help="The work failed: end the attempt with this message."),
    ] = None,
    place: options.Location = options.HERE,
    pipelines: options.Pipelines = None,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
) -> None:
    """Finish a task that a step deferred.

    The outcome that came from outside is stored like one of the step itself. The first one
    counts. A file in the result is written as its name; a result of more than 64 KiB is given as
    --file result.json=PATH.
    """
    from intermission.errors import UsageError
    from intermission.operations.finish import Outcome
    from intermission.operations.finish import finish as finish_task

    named = options.parse_pairs(file, "--file NAME=PATH", "--file depth.bin=PATH", "file")
    files = {name: Path(path) for name, path in named.items()}
    if failed is not None and (result is not None or files):
        raise UsageError(
            "--failed goes with neither --result nor --file.", remedy="A failed attempt has none."
        )
    if failed is None and result is None and "result.json" not in files:
        raise UsageError(
            "neither --result nor --failed is given.",
            remedy="Say what the step would have returned, as JSON, or why the work failed.",
        )
    app = options.open_app(ctx)
    document = finish_task(app, token, Outcome(result or "", failed), files, place)
    if as_json:
        emit({"event": "finished"}, document)
    else:
        say(f"{document.task} is {document.state}")
