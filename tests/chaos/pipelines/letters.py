"""Many short tasks with small results: cut a text, shout each piece, put it together."""

from __future__ import annotations

from execution import execution, work_for
from release import RELEASE

from intermission import Chunk, Context, File, Pipeline, Source, step


class Piece(Chunk):
    start: int
    stop: int


@step(version=1)
def pieces(ctx: Context, source: Source, size: int = 8) -> list[Piece]:
    with execution(ctx, "pieces"):
        length = len(source.path.read_text())
        return [Piece(start=n, stop=min(n + size, length)) for n in range(0, length, size)]


@step(version=RELEASE)
def shout(ctx: Context, source: Source, piece: Piece) -> str:
    with execution(ctx, "shout"):
        work_for(ctx, 0.4)
        return source.path.read_text()[piece.start : piece.stop].upper() + "!" * RELEASE


@step(version=1)
def whole(ctx: Context, shout: list[str]) -> File:
    with execution(ctx, "whole"):
        path = ctx.out("whole.txt")
        path.write_text("".join(shout))
        return path


letters = Pipeline("letters", [pieces, shout, whole])
