"""The pipelines that are measured: steps that do nothing, so that the rest can be seen."""

from __future__ import annotations

from collections.abc import Iterator

from intermission import Chunk, Context, Pipeline, step


class Item(Chunk):
    n: int


@step(version=1)
def items(count: int) -> Iterator[Item]:
    for n in range(count):
        yield Item(n=n)


@step(version=1, durable=False)
def nothing(item: Item) -> None:
    """A light step: its end is in the ledger alone."""


@step(version=1)
def promise(item: Item) -> None:
    """Its end is a receipt, synced to the disk."""


@step(version=1)
def note(ctx: Context, item: Item) -> None:
    """Its end is a receipt that names a file."""
    ctx.out("note.txt").write_text(str(item.n))


light = Pipeline("light", [items, nothing])
receipted = Pipeline("receipted", [items, promise])
filed = Pipeline("filed", [items, note])
