"""The command line: arguments in, data on standard output, everything else on standard error.

It calls `intermission.operations` and decides nothing about tasks. Importing it must stay cheap:
a command's module imports what it needs inside the command, so that `--help` loads none of it.
"""

from __future__ import annotations

import typer

from intermission.cli import (
    config,
    doctor,
    failures,
    finish,
    gc,
    inspect,
    limit,
    ls,
    models,
    plan,
    prune,
    rebuild,
    retry,
    run,
    serve,
    status,
    submit,
    watch,
    watch_folder,
    worker,
    workers,
)
from intermission.cli.command import Command
from intermission.cli.pipeline_commands import Group, PipelineCommand
from intermission.cli.streams import make_patient

app = typer.Typer(
    name="intermission",
    cls=Group,
    help="Media pipelines that survive interruption: the same command always continues.",
    no_args_is_help=True,
    # Plain help and usage errors: loading what draws boxes takes longer than all the rest.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda word: word.replace("_", "-"),
    },
)

# A pipeline's parameters are options too, and known only once it is loaded.
for function in (run.run, plan.plan, submit.submit, watch_folder.watch_folder):
    app.command(cls=PipelineCommand, context_settings={"ignore_unknown_options": True})(function)
for function in (
    ls.ls,
    status.status,
    watch.watch,
    inspect.logs,
    inspect.inspect,
    inspect.why,
    retry.retry,
    retry.cancel,
    finish.finish,
    rebuild.rebuild,
    gc.gc,
    prune.prune,
    doctor.doctor,
    serve.serve,
    worker.worker,
    workers.workers,
    workers.register,
    failures.failures,
    limit.limit,
    limit.pause,
    limit.resume,
):
    app.command(cls=Command)(function)
app.add_typer(models.app)
app.add_typer(config.app)


def _version(wanted: bool) -> None:
    if wanted:
        from intermission import __version__

        print(f"intermission {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """The entry point of the installed command."""
    make_patient()
    app(prog_name="intermission")
