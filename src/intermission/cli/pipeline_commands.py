"""Pipelines on the command line: each is a command, and its parameters are options.

Nothing is imported until a pipeline is asked for, so that `--help` of everything else stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

from intermission.cli.command import Command
from intermission.cli.habits import COMMANDS, instead_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import typer

    from intermission.pipeline import Pipeline
    from intermission.pipeline.parameter import Parameter

_PIPELINE = "intermission.pipeline"
HELP = frozenset({"-h", "--help"})
RUN = "run"


class Group(TyperGroup):
    """`intermission transcribe talk.mp4` is `intermission run transcribe talk.mp4`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is None and name in _names():
            return RUN, self.get_command(ctx, RUN), args
        if name in COMMANDS and self.get_command(ctx, name) is None:
            ctx.fail(f"there is no command {name}. Write `intermission {COMMANDS[name]}`.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        super().format_commands(ctx, formatter)
        with formatter.section("Pipelines, each a command too"):
            formatter.write_text(", ".join(_names()))


class PipelineCommand(Command):
    """A command whose first argument names a pipeline, whose parameters are options of it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if HELP & {*args}:
            name = next((word for word in args if not word.startswith("-")), None)
            ctx.meta[_PIPELINE] = None if name is None else _load(ctx, name)
        for word in args:  # before its letters are taken for options
            remedy = instead_of(word) if len(word) > 2 and word[1] != "-" else None
            if word.startswith("-") and remedy is not None:
                ctx.fail(f"there is no option {word}. {remedy}")
        return super().parse_args(ctx, args)

    def format_own_options(self, ctx: Any, formatter: Any) -> None:
        pipeline = ctx.meta.get(_PIPELINE)
        if pipeline is None:
            with formatter.section("Options of the pipeline"):
                formatter.write_text(
                    f"`intermission {ctx.info_name} PIPELINE --help` shows them. "
                    f"Installed: {', '.join(_names())}."
                )
            return
        with formatter.section(f"Options of {pipeline.name}"):
            formatter.write_dl(list(_rows(pipeline)))


def _names() -> list[str]:
    from importlib.metadata import entry_points

    # As `pipeline.load` does, without importing it and what it needs.
    return sorted({entry.name for entry in entry_points(group="intermission.pipelines")})


def _load(ctx: typer.Context, name: str) -> Pipeline | None:
    from intermission.errors import IntermissionError
    from intermission.pipeline.catalog import Catalog
    from intermission.settings import load_settings

    try:
        return Catalog(load_settings({}).settings.pipelines).add(name)
    except IntermissionError as e:
        ctx.fail(str(e))


def _rows(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    from intermission.pipeline.parameter import parameters_of

    for parameter in parameters_of(pipeline):
        yield usage(parameter), meaning(parameter)


def usage(parameter: Parameter) -> str:
    """An option with what it takes."""
    if parameter.is_flag:
        return f"{parameter.option} / --no-{parameter.option.removeprefix('--')}"
    return f"{parameter.option} {parameter.metavar}"


def meaning(parameter: Parameter) -> str:
    """What an option does, the values it takes, and the one it has by itself."""
    text = parameter.description
    notes: list[str] = []
    low, high = parameter.bounds
    if low is not None or high is not None:
        notes.append(f"{low}-{high}" if None not in (low, high) else parameter.range)
    if parameter.default is ...:
        notes.append("required")
    elif not parameter.is_flag and parameter.default not in ("", None):
        notes.append(f"default: {parameter.default}")
    noted = f"[{'; '.join(notes)}]" if notes else ""
    return "  ".join(filter(None, (text[:1].upper() + text[1:], noted)))


def split_words(words: Sequence[str], pipeline: Pipeline) -> tuple[list[str], dict[str, str]]:
    """Sources, and the pipeline's parameters that were given as options: `--chunk-seconds 30`."""
    sources: list[str] = []
    params: dict[str, str] = {}
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        if not word.startswith("-") or word == "-":
            sources.append(word)
            continue
        option, equals, value = word.partition("=")
        parameter, is_off = _parameter(option, pipeline)
        if parameter.name in params:
            raise _wrong(f"{option} is given twice.", "Give it one value.")
        if not equals and parameter.is_flag:
            takes_next = rest and rest[-1].lower() in ("true", "false", "yes", "no")
            value = rest.pop() if takes_next else "true"
        elif not equals:
            if not rest:
                raise _wrong(f"{option} has no value.", f"Write {option} {parameter.metavar}.")
            value = rest.pop()
        params[parameter.name] = "false" if is_off else value
    return sources, params


def _parameter(option: str, pipeline: Pipeline) -> tuple[Parameter, bool]:
    """The parameter that an option names, and whether the option turns it off."""
    from difflib import get_close_matches

    from intermission.pipeline.parameter import parameters_of

    known = {one.option: one for one in parameters_of(pipeline)}
    wanted = option.replace("_", "-")
    if wanted in known:
        return known[wanted], False
    flag = known.get(wanted.replace("--no-", "--", 1))
    if flag is not None and flag.is_flag and wanted.startswith("--no-"):
        return flag, True
    close = get_close_matches(wanted, known, n=1)
    remedy = instead_of(option) or (f"Did you mean {close[0]}?" if close else "")
    raise _wrong(
        f"there is no option {option}.",
        remedy or f"`intermission run {pipeline.name} --help` lists them.",
    )


def _wrong(message: str, remedy: str) -> Exception:
    from intermission.errors import ParameterError

    return ParameterError(message, remedy=remedy)
