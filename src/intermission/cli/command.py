"""How a command ends: its exit code, and an error as one sentence with its remedy.

0 done, 1 failed, 2 usage, 3 some sources failed, 4 environment, 75 interrupted with progress
saved. A traceback is shown under `-v` alone.
"""

from __future__ import annotations

import signal
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperCommand

from intermission.errors import EnvironmentFault, IntermissionError, Interrupted, fault_from_os

AGAIN = "Progress is saved; run the same command again."
WORKING = ("run", "retry")
"""Commands whose interruption is an end of its own, not a failure."""


class Command(TyperCommand):
    """A command whose function returns its exit code, or None for 0."""

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return ["[OPTIONS]", *(_argument(param) for param in self.params if _is_argument(param))]

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Arguments, then options in their groups; those of a pipeline come first."""
        arguments = [
            (param.metavar or str(param.name).upper(), getattr(param, "help", None) or "")
            for param in self.params
            if _is_argument(param)
        ]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        self.format_own_options(ctx, formatter)
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = None if _is_argument(param) else param.get_help_record(ctx)
            if record is not None:
                group = getattr(param, "rich_help_panel", None) or "Options"
                groups.setdefault(group, []).append(record)
        for title in sorted(groups, key=lambda title: title == "Options"):
            with formatter.section(title):
                formatter.write_dl(groups[title])

    def format_own_options(self, ctx: typer.Context, formatter: Any) -> None:
        """Options that are known only once the command line is."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            code = super().invoke(ctx) or 0
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
            if ctx.command.name in WORKING:
                code = self._explain(ctx, Interrupted("interrupted.", remedy=AGAIN))
        except IntermissionError as e:
            code = self._explain(ctx, e)
        except OSError as e:
            code = self._explain(ctx, fault_from_os(e, ctx.command.name or "", EnvironmentFault))
        except (typer.Exit, typer.Abort):
            raise
        except Exception as e:
            bug = IntermissionError(
                f"this is a bug in Intermission: {type(e).__name__}: {e}.",
                remedy="Run again with -v for the traceback.",
            )
            code = self._explain(ctx, bug)
        raise typer.Exit(code)

    def _explain(self, ctx: typer.Context, error: IntermissionError) -> int:
        if ctx.params.get("verbose"):
            traceback.print_exc()
        complain(str(error))
        if ctx.params.get("as_json") or ctx.params.get("as_jsonl"):
            from intermission.cli.jsonout import emit, fields
            from intermission.operations.documents import ErrorDocument

            told = {"exit_code": error.exit_code, "error": fields(ErrorDocument.of(error))}
            emit({"event": "error"} | told)
        return error.exit_code


def _is_argument(param: Any) -> bool:
    return param.param_type_name == "argument"


def _argument(param: Any) -> str:
    name = param.metavar or str(param.name).upper()
    many = "..." if param.nargs != 1 else ""
    return f"{name}{many}" if param.required else f"[{name}]{many}"


def complain(sentence: str) -> None:
    print(f"intermission: {sentence}", file=sys.stderr)


def say(line: str) -> None:
    """Something a person may want to know, beside the data on standard output."""
    print(line, file=sys.stderr)
