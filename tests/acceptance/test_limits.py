"""A step's concurrency limit holds over everything one run works on."""

from __future__ import annotations

from command_line import Cli

PIPELINE = """
import fcntl, os, time
from contextlib import ExitStack
from intermission import Chunk, Context, Permanent, Pipeline, Source, step

class Piece(Chunk):
    number: int

@step(version=1)
def pieces(source: Source) -> list[Piece]:
    return [Piece(number=n) for n in range(4)]

@step(version=1, concurrency=2, attempts=1)
def limited(source: Source, piece: Piece) -> int:
    # Two seats: whoever finds none is the third at the table.
    with ExitStack() as stack:
        for seat in ("seat-0", "seat-1"):
            file = stack.enter_context(open(seat, "w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            time.sleep(0.05)
            return piece.number
    raise Permanent("more than two at a time.")

@step(version=1)
def free(source: Source, piece: Piece) -> int:
    return piece.number

crowd = Pipeline("crowd", [pieces, limited, free])
"""


def test_a_limit_holds_over_every_source_of_a_run(cli: Cli) -> None:
    (cli.folder / "crowd.py").write_text(PIPELINE)
    folder = cli.folder / "sources"
    folder.mkdir()
    for n in range(3):
        (folder / f"{n}.txt").write_text(str(n))
    ended = cli("run", "crowd.py:crowd", "sources", "--slots", "6")
    assert ended.code == 0, ended.err
    assert "ran 27 in" in ended.err
