"""`intermission finish`: the result of a task that waits for an outside event."""

from __future__ import annotations

from typing import Annotated

import typer

from intermission.cli.command import say
from intermission.cli.options import HERE, Location, Pipelines, Verbose, open_app


def finish(
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="What the step passed to ctx.defer.")
    ],
    result: Annotated[str, typer.Option(metavar="JSON", help="What the step would have returned.")],
    place: Location = HERE,
    pipeline: Pipelines = None,
    verbose: Verbose = False,
) -> None:
    """Finish a task that a step deferred.

    The result that came from outside is stored like one of the step itself.
    """
    from intermission.operations import retry

    app = open_app(verbose, pipelines=tuple(pipeline) if pipeline else None)
    name = retry.finish(app, token, result, place)
    say(f"{name} is done")
