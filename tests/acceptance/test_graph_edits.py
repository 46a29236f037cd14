"""An edit of the graph is another job; tasks that it leaves as they were are reused."""

from __future__ import annotations

import pytest
from command_line import Cli

BEFORE = """
import os
import time
from pathlib import Path
from intermission import Context, File, Pipeline, Source, step

def called(what: str) -> None:
    with Path(os.environ["CALLS"]).open("a") as file:
        file.write(what + "\\n")

@step(version=1)
def words(source: Source) -> list[str]:
    called("words")
    return source.path.read_text().split()

@step(version=1, attempts=1)
def letters(source: Source) -> list[str]:
    called("letters")
    if not Path(os.environ["GATE"]).exists():
        raise ValueError("not yet")
    over_s = time.monotonic() + 2  # for a report that does not wait for this
    while "report" not in Path(os.environ["CALLS"]).read_text() and time.monotonic() < over_s:
        time.sleep(0.05)
    return list(source.path.read_text())

@step(version=1, attempts=1)
def report(ctx: Context, words: list[str]) -> File:
    called("report")
    if not Path(os.environ["GATE"]).exists():
        raise ValueError("not yet")
    path = ctx.out("report.txt")
    path.write_text(repr(words))
    return path

edited = Pipeline("edited", [words, letters, report])
"""
ANOTHER_INPUT = BEFORE.replace(
    "def report(ctx: Context, words", "def report(ctx: Context, letters"
).replace("repr(words)", "repr(letters)")
ONE_MORE = BEFORE.replace("words: list[str])", "words: list[str], letters: list[str])").replace(
    "repr(words)", "repr((words, letters))"
)


@pytest.mark.parametrize(
    ("after", "expected"),
    [(ANOTHER_INPUT, "['a', ' ', 'b']"), (ONE_MORE, "(['a', 'b'], ['a', ' ', 'b'])")],
)
def test_a_step_gets_what_its_edited_signature_says(cli: Cli, after: str, expected: str) -> None:
    source, code = cli.source(text="a b"), cli.folder / "edited.py"
    code.write_text(BEFORE)
    cli("run", f"{code}:edited", source, code=1)
    assert cli.calls() == {"words": 1, "letters": 1, "report": 1}
    cli.open_gate()
    code.write_text(after)
    cli("run", f"{code}:edited", source)
    assert (cli.folder / "edited/a/report.txt").read_text() == expected
    assert cli.calls() == {"letters": 1, "report": 1}
