"""A pipeline that calls a paid API once for every line of a text, at most two calls at a time.

The API is simulated. It writes every call it receives into a file, `calls.txt` unless the
parameter `bill` names another: kill the run as often as you like, and see what was paid twice.

intermission run examples/paid_api.py:paid_api examples/texts/raven.txt
"""

import os
import time
from pathlib import Path

from intermission import Chunk, Context, File, Pipeline, Source, step

CALL_S = 0.15


def call_the_api(prompt: str, *, key: str, bill: Path) -> str:
    """Stands for a slow service that takes money for every call, answered or not."""
    fd = os.open(bill, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, f"{key}\n".encode())
    os.close(fd)
    time.sleep(CALL_S)
    return " ".join(reversed(prompt.split()))


class Line(Chunk):
    number: int
    text: str


@step(version=1)
def lines(source: Source) -> list[Line]:
    texts = source.path.read_text(encoding="utf-8").splitlines()
    return [Line(number=n, text=text) for n, text in enumerate(texts, 1) if text.strip()]


@step(version=1, concurrency=2, timeout_s=30)
def ask(ctx: Context, line: Line, bill: str = "calls.txt") -> str:
    """One paid call. A real API that gets the same key twice need not bill it twice."""
    return call_the_api(line.text, key=ctx.idempotency_key, bill=Path(bill))


@step(version=1)
def answers(ctx: Context, ask: list[str]) -> File:
    path = ctx.out("answers.txt")
    path.write_text("".join(f"{answer}\n" for answer in ask), encoding="utf-8")
    return path


paid_api = Pipeline("paid_api", [lines, ask, answers], output="answers")
