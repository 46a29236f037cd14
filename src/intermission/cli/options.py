"""Options and arguments that several commands share, and the app they open with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from intermission.app import App

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Log more, and show the traceback of an error.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
AsJsonLines = Annotated[
    bool, typer.Option("--jsonl", help="Print one JSON event a line on standard output.")
]
Place = Annotated[
    Path,
    typer.Option("--in", metavar="PLACE", help="Look for jobs in this folder and below it."),
]
JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="A source, which names its newest job, or the beginning of a job's key."
    ),
]
TaskName = Annotated[
    str,
    typer.Argument(
        metavar="TASK", help="A step, a chunk of it such as count[7], or a task key's beginning."
    ),
]
PipelineName = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE", help="An installed pipeline, module:name or path/to/file.py:name."
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param", "-p", metavar="NAME=VALUE", help="A parameter of the pipeline. Repeatable."
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        "--include", metavar="PATTERN", help="Of a folder, only files like *.mp4. Repeatable."
    ),
]

HERE = Path()


def open_app(verbose: bool = False, **flags: Any) -> App:
    """The app with the settings that hold here; flags that are None were not given."""
    from intermission.app import App
    from intermission.settings import load_settings
    from intermission.telemetry import configure_logging

    settings = load_settings(flags).settings
    configure_logging("debug" if verbose else settings.log_level)
    return App(settings)


def parse_params(given: list[str] | None) -> dict[str, str]:
    """`x=1` as name and value."""
    from intermission.errors import ParameterError

    params: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ParameterError(
                f"expected --param NAME=VALUE, found {text!r}.", remedy="Write --param every=20."
            )
        if name in params:
            raise ParameterError(f"parameter {name!r} is given twice.", remedy="Give it one value.")
        params[name] = value
    return params
