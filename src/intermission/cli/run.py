"""`intermission run`: sources through a pipeline, continuing whatever was begun before."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from intermission.cli.options import (
    AsJson,
    AsJsonLines,
    Include,
    Params,
    PipelineName,
    Verbose,
    open_app,
    parse_params,
)

if TYPE_CHECKING:
    from intermission.app import App, Reporter, RunReport

    class Display(Reporter, Protocol):
        """A reporter that lets go of the terminal at the end."""

        def finish(self) -> None: ...


def run(
    pipeline: PipelineName,
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Files, folders, or quoted patterns."),
    ],
    param: Params = None,
    include: Include = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over: finished work goes into quarantine.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Hash every finished file, even untouched ones.")
    ] = False,
    slots: Annotated[
        int | None, typer.Option(metavar="N", help="How many tasks run at a time.")
    ] = None,
    can: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="What steps may need, such as gpu. Repeatable."),
    ] = None,
    drain_s: Annotated[
        float | None, typer.Option(metavar="S", help="Time that running tasks get to end.")
    ] = None,
    lease_ttl_s: Annotated[
        float | None, typer.Option(metavar="S", help="When a vanished worker's tasks go on.")
    ] = None,
    renew_every_s: Annotated[
        float | None, typer.Option(metavar="S", help="Time between renewals of a lease.")
    ] = None,
    retry_delays_s: Annotated[
        str | None, typer.Option(metavar="S,S,...", help="Waits before further attempts.")
    ] = None,
    slot_memory_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory limit of a slot, such as 2GiB.")
    ] = None,
    slot_cpu_s: Annotated[
        float | None, typer.Option(metavar="S", help="CPU time that one task may use.")
    ] = None,
    as_json: AsJson = False,
    as_jsonl: AsJsonLines = False,
    verbose: Verbose = False,
) -> int:
    """Run a pipeline over sources; continue where it stopped.

    Kill it whenever you like: the same command goes on, and finished tasks are not redone.
    The paths of the outputs are printed on standard output.
    """
    app = open_app(
        verbose,
        slots=slots,
        can=tuple(can) if can else None,
        drain_s=drain_s,
        lease_ttl_s=lease_ttl_s,
        renew_every_s=renew_every_s,
        retry_delays_s=retry_delays_s,
        slot_memory_bytes=slot_memory_bytes,
        slot_cpu_s=slot_cpu_s,
    )
    return carry_out(
        app,
        pipeline,
        sources,
        parse_params(param),
        as_json=as_json,
        as_jsonl=as_jsonl,
        include=include or (),
        fresh=fresh,
        thorough=verify,
    )


def carry_out(
    app: App,
    ref: str,
    sources: Sequence[str],
    params: Mapping[str, Any],
    *,
    as_json: bool,
    as_jsonl: bool,
    **how: Any,
) -> int:
    """Run, show the progress, print the outcome; the exit code."""
    from intermission.app import run as run_sources
    from intermission.cli.report import exit_code

    started_s = time.monotonic()
    display = _display(ref, as_jsonl)
    try:
        report = run_sources(app, ref, sources, params, display, **how)
    finally:
        display.finish()
    _conclude(report, time.monotonic() - started_s, as_json or as_jsonl)
    return exit_code(report)


def _conclude(report: RunReport, took_s: float, as_json: bool) -> None:
    from intermission.cli.jsonout import emit, report_fields
    from intermission.cli.report import exit_code, print_outputs, print_summary

    print_summary(report, took_s)
    if as_json:
        emit(report_fields(report, exit_code(report)))
    else:
        print_outputs(report)


def _display(ref: str, as_jsonl: bool) -> Display:
    """Bars for a terminal, lines for a pipe, events for a program."""
    if as_jsonl:
        from intermission.cli.lines import JsonLinesReporter

        return JsonLinesReporter()
    if sys.stderr.isatty():
        from rich.console import Console

        from intermission.cli.progress import RichReporter

        console = Console(stderr=True, highlight=False)
        if not console.is_dumb_terminal:
            return RichReporter(console, ref.rpartition(":")[2] or ref)
    from intermission.cli.plain import PlainReporter

    return PlainReporter()
