"""What Intermission runs against the queues: many tasks that do nothing, and one that tells."""

from __future__ import annotations

from intermission import Chunk, Pipeline, step
from queues.starts import started


class Item(Chunk):
    n: int


@step(version=1)
def items(count: int) -> list[Item]:
    return [Item(n=n) for n in range(count)]


@step(version=1, durable=False)
def nothing(item: Item) -> None:
    """A light step: its end is in the ledger alone, as a queue's is."""


@step(version=1)
def start(n: int) -> None:
    """An ordinary step, with a receipt."""
    started(n)


light = Pipeline("light", [items, nothing])
told = Pipeline("told", [start])
