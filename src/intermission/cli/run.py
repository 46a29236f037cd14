"""`intermission run`: sources through a pipeline, continuing whatever was begun before."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from intermission.cli import options
from intermission.cli.jsonout import emit
from intermission.cli.pipeline_commands import split_words
from intermission.errors import UsageError

if TYPE_CHECKING:
    from intermission.operations import App, Reporter
    from intermission.pipeline import Pipeline

    class Display(Reporter, Protocol):
        """A reporter that lets go of the terminal at the end."""

        def finish(self) -> None: ...


def run(
    ctx: typer.Context,
    pipeline: options.PipelineName,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Files, folders, or quoted patterns, and the pipeline's own --options.",
        ),
    ],
    param: options.Params = None,
    include: options.Include = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Start over: finished work goes into quarantine.",
            rich_help_panel=options.FILES,
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Hash every finished file, even untouched ones.",
            rich_help_panel=options.FILES,
        ),
    ] = False,
    output_dir: options.OutputDir = None,
    slots: options.Slots = None,
    can: options.Can = None,
    drain_s: options.DrainS = None,
    lease_ttl_s: options.LeaseTtlS = None,
    renew_every_s: options.RenewEveryS = None,
    retry_delays_s: options.RetryDelaysS = None,
    slot_memory_bytes: options.SlotMemoryBytes = None,
    slot_cpu_s: options.SlotCpuS = None,
    speech_device: options.Device = None,
    speech_precision: options.ComputeType = None,
    speech_threads: options.Threads = None,
    as_json: options.AsJson = False,
    as_jsonl: options.AsJsonLines = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Run a pipeline over sources; continue where it stopped.

    Kill it whenever you like: the same command goes on, and finished tasks are not redone.
    The paths of the outputs are printed on standard output; where a few files lead to all the
    others, such as the playlist of a video, those.
    """
    options.refuse_option(pipeline)
    app = options.open_app(ctx)
    return carry_out(
        app,
        pipeline,
        sources,
        options.parse_params(param),
        as_json=as_json,
        as_jsonl=as_jsonl,
        quiet=quiet,
        include=include or (),
        fresh=fresh,
        thorough=verify,
        read=partial(_read, threads=speech_threads),
    )


def _read(
    words: Sequence[str], pipeline: Pipeline, *, threads: int | None
) -> tuple[list[str], dict[str, str]]:
    places, own = split_words(words, pipeline)
    if not places:
        raise UsageError("no source is given.", remedy="Name files or folders to run it over.")
    if threads is not None and "threads" in pipeline.parameters:
        own["threads"] = str(threads)  # an encoder's, which are part of what it makes
    return places, own


def carry_out(
    app: App,
    ref: str,
    sources: Sequence[str],
    params: Mapping[str, Any],
    *,
    as_json: bool,
    as_jsonl: bool,
    quiet: bool = False,
    **how: Any,
) -> int:
    """Run, show the progress, print the outcome; the exit code."""
    from intermission.cli.quiet_reporter import QuietReporter
    from intermission.cli.report import print_outputs, print_summary
    from intermission.operations import run as run_sources
    from intermission.operations.documents import RunDocument

    started_s = time.monotonic()
    display = QuietReporter() if quiet and not as_jsonl else _display(ref, as_jsonl)
    try:
        report = run_sources(app, ref, sources, params, display, **how)
    finally:
        display.finish()
    print_summary(report, None if quiet else time.monotonic() - started_s)
    if as_json or as_jsonl:
        emit(RunDocument.of(report))
    else:
        print_outputs(report)
    return report.exit_code


def _display(ref: str, as_jsonl: bool) -> Display:
    """Bars for a terminal, lines for a pipe, events for a program."""
    if as_jsonl:
        from intermission.cli.jsonl_reporter import JsonLinesReporter

        return JsonLinesReporter()
    if sys.stderr.isatty():
        from rich.console import Console

        from intermission.cli.rich_reporter import RichReporter

        console = Console(stderr=True, highlight=False)
        if not console.is_dumb_terminal:
            return RichReporter(console, ref.rpartition(":")[2] or ref)
    from intermission.cli.plain_reporter import PlainReporter

    return PlainReporter()
