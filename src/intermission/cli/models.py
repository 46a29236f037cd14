"""`intermission models`: the speech models there are, and downloading one."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from intermission.cli import options
from intermission.cli.command import Command, say

EVERY_S = 1.0

app = typer.Typer(
    name="models",
    help="List and download speech models.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(name="list", cls=Command)
def list_models(
    ctx: typer.Context, as_json: options.AsJson = False, verbose: options.Verbose = False
) -> None:
    """List the speech models that have a name, and which of them are on this machine.

    The size of a model that is not here is about what it takes to download.
    """
    from intermission.cli.formatting import size, table
    from intermission.cli.jsonout import emit, fields
    from intermission.operations.models import list_models

    found = list_models(options.open_app(ctx).settings)
    if as_json:
        emit({"event": "models", "models": [fields(one) for one in found]})
        return
    rows = [
        (one.name, "yes" if one.present else "no", size(one.size_bytes), one.repository)
        for one in found
    ]
    print(table(("MODEL", "HERE", "SIZE", "REPOSITORY"), rows))


@app.command(cls=Command)
def download(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A name that `models list` shows, or ORG/NAME.")
    ],
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
) -> None:
    """Download a speech model, or what is missing of it.

    Interrupt it whenever you like: the same command continues. The folder of the model is printed
    on standard output.
    """
    from intermission.cli.jsonout import emit
    from intermission.operations.models import download_model

    settings = options.open_app(ctx).settings
    done = download_model(settings, model, _Progress(model).show)
    if as_json:
        emit({"event": "model"}, done)
    else:
        print(done.path)


class _Progress:
    """A line a second on standard error, rewritten in place on a terminal."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._last_s = time.monotonic()

    def show(self, done_bytes: int, total_bytes: int) -> None:
        from intermission.cli.formatting import size

        now_s = time.monotonic()
        is_done = done_bytes == total_bytes
        if now_s - self._last_s < EVERY_S and not is_done:
            return
        self._last_s = now_s
        line = f"{self._model}: {size(done_bytes)} of {size(total_bytes)}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="\n" if is_done else "", file=sys.stderr, flush=True)
        else:
            say(line)
