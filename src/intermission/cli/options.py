"""Options and arguments that several commands share, and the app they open with them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from intermission.operations import App

State = TypeVar("State", bound=StrEnum)

FILES = "Sources and outputs"
MACHINE = "This machine"

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Log more, and show the traceback of an error.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
AsJsonLines = Annotated[
    bool, typer.Option("--jsonl", help="Print one JSON event a line on standard output.")
]
Location = Annotated[
    str,
    typer.Option("--in", metavar="PLACE", help="Look for jobs in this folder or URL and below."),
]
Searched = Annotated[
    str, typer.Argument(metavar="PLACE", help="A folder or URL; it and all below are searched.")
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
Pipelines = Annotated[
    list[str] | None,
    typer.Option(
        "--pipeline",
        metavar="PIPELINE",
        help="Have this one too: path/to/file.py:name or module:name. Repeatable.",
    ),
]
OfPipeline = Annotated[str | None, typer.Option(metavar="NAME", help="Only of this pipeline.")]
Priority = Annotated[int, typer.Option(metavar="N", help="Jobs with a higher number go first.")]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        "-p",
        metavar="NAME=VALUE",
        help="An option of the pipeline by its name. Repeatable.",
        rich_help_panel=FILES,
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="PATTERN",
        help="Of a folder, take only files like *.mp4. Repeatable.",
        rich_help_panel=FILES,
    ),
]
OutputDir = Annotated[
    str | None,
    typer.Option(
        "--output-dir",
        "-o",
        metavar="FOLDER",
        help="Where outputs go, instead of beside each source.",
        rich_help_panel=FILES,
    ),
]
LedgerUrl = Annotated[
    str | None,
    typer.Option("--ledger", metavar="URL", help="The shared ledger: PostgreSQL or a SQLite file."),
]
ServerUrl = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="A server to work with, instead of a ledger."),
]
Slots = Annotated[
    int | None,
    typer.Option(metavar="N", help="How many tasks run at a time.", rich_help_panel=MACHINE),
]
Can = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LABEL",
        help="A label this machine offers to steps that need it, such as gpu. Repeatable.",
        rich_help_panel=MACHINE,
    ),
]
DrainS = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        help="Seconds that running tasks get to finish after an interruption.",
        rich_help_panel=MACHINE,
    ),
]
LeaseTtlS = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        help="Seconds until a lost worker's tasks are reassigned.",
        rich_help_panel=MACHINE,
    ),
]
RenewEveryS = Annotated[
    float | None,
    typer.Option(metavar="S", help="Seconds between renewals of a lease.", rich_help_panel=MACHINE),
]
RetryDelaysS = Annotated[
    str | None,
    typer.Option(
        metavar="S,S,...",
        help="Seconds to wait before the second, third, ... attempt.",
        rich_help_panel=MACHINE,
    ),
]
SlotMemoryBytes = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory limit of one task's process, such as 2GiB.",
        rich_help_panel=MACHINE,
    ),
]
SlotCpuS = Annotated[
    float | None,
    typer.Option(metavar="S", help="CPU seconds that one task may use.", rich_help_panel=MACHINE),
]

Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda",
        help="Where speech models run.",
        rich_help_panel=MACHINE,
    ),
]
ComputeType = Annotated[
    str | None,
    typer.Option(
        "--compute-type",
        metavar="TYPE",
        help="Precision of speech models: int8, float16, float32, ...",
        rich_help_panel=MACHINE,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        help="Threads of one speech model or encoder.",
        rich_help_panel=MACHINE,
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show no progress; print results and errors alone.")
]

HERE = "."


def open_app(ctx: typer.Context) -> App:
    """The app with the settings that hold here; options named like a setting come before all."""
    from intermission.operations import App
    from intermission.settings import Settings, load_settings
    from intermission.telemetry import configure_logging

    named = ctx.params.keys() & Settings.model_fields.keys()
    flags = {name: ctx.params[name] for name in named if ctx.params[name] not in (None, (), [])}
    settings = load_settings(flags).settings
    level = "debug" if ctx.params.get("verbose") else settings.log_level
    configure_logging(level, json=settings.log_format == "json")
    return App(settings)


def refuse_option(pipeline: str) -> None:
    """An option that nobody knows ends up where the pipeline's name is expected."""
    from intermission.cli.habits import instead_of
    from intermission.errors import ParameterError

    if pipeline.startswith("-"):
        raise ParameterError(
            f"there is no option {pipeline}.",
            remedy=instead_of(pipeline) or "`intermission run --help` lists them.",
        )


def parse_params(given: list[str] | None) -> dict[str, str]:
    """`x=1` as name and value."""
    return parse_pairs(given, "--param NAME=VALUE", "--param every=20", "parameter")


def parse_pairs(given: list[str] | None, form: str, example: str, what: str) -> dict[str, str]:
    """Options of the form `NAME=VALUE`, each name once."""
    from intermission.errors import ParameterError

    pairs: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ParameterError(f"expected {form}, found {text!r}.", remedy=f"Write {example}.")
        if name in pairs:
            raise ParameterError(f"{what} {name!r} is given twice.", remedy="Give it one value.")
        pairs[name] = value
    return pairs


def parse_states(kind: type[State], what: str, given: list[str] | None) -> list[State]:
    """States of tasks or jobs by their names."""
    from intermission.errors import UsageError

    for name in given or ():
        if name not in list(kind):
            raise UsageError(
                f"there is no {what} {name!r}.", remedy=f"The states are {', '.join(kind)}."
            )
    return [kind(name) for name in given or ()]
