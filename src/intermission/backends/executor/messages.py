"""A batch as a slot is sent it: each message of a bounded size, however long a fan-in is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from intermission.model import Lease, Output
from intermission.ports.slot_protocol import Batch, InputPage, Inputs

INPUTS_AT_ONCE = 500


def messages(
    context: str, leases: Sequence[Lease], inputs: Mapping[int, Inputs]
) -> Iterator[InputPage | Batch]:
    """A batch as a slot is sent it, each message of a bounded size."""
    rest: dict[int, dict[str, Iterable[Output | None]]] = {}
    for task_id, by_param in inputs.items():
        rest[task_id] = {}
        for param, outputs in by_param.items():
            if isinstance(outputs, tuple):
                rest[task_id][param] = outputs
                continue
            walk = iter(outputs)
            page, first = tuple(islice(walk, INPUTS_AT_ONCE)), 0
            while len(page) == INPUTS_AT_ONCE:
                yield InputPage(task_id, param, first, page)
                first += len(page)
                page = tuple(islice(walk, INPUTS_AT_ONCE))
            if first:
                yield InputPage(task_id, param, first, page)
            else:
                rest[task_id][param] = page
    yield Batch(context, leases, rest)
