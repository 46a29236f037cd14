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


def complain(sentence: str) -> None:
    print(f"intermission: {sentence}", file=sys.stderr)


def say(line: str) -> None:
    """Something a person may want to know, beside the data on standard output."""
    print(line, file=sys.stderr)
