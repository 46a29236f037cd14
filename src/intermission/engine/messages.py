"""What a worker and its slots say to each other.

Leases and ends travel many at once, field by field: to send them as objects would cost more
than to claim them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from intermission.engine.outcome import Ends, Finished, Outcome, Trouble
from intermission.model import Completion, Job, Lease, Source
from intermission.ports.store import Store
from intermission.settings import Settings

_lease_fields = attrgetter(*Lease.__match_args__)
_completion_fields = attrgetter(*Completion.__match_args__)


@dataclass(frozen=True)
class JobContext:
    """How a slot works on one job: sent once, before its first task."""

    name: str
    job: Job
    open_store: Callable[[], Store]
    open_outputs: Callable[[], Store] | None
    fetch_source: Callable[[Source], Path] | None
    folder: Path
    """Where logs and, for a remote store, working files go."""
    worker: str
    settings: Settings


@dataclass(frozen=True)
class Batch:
    """Leases to run one after the other, all under the same orders."""

    orders: str
    leases: list[Lease]
    counted: bool = False
    """Whether each may be begun only with a token."""

    def __reduce__(self) -> tuple[Any, ...]:
        columns = list(zip(*map(_lease_fields, self.leases), strict=True))
        return _batch, (self.orders, columns, self.counted)


def _batch(orders: str, columns: list[tuple[Any, ...]], counted: bool) -> Batch:
    return Batch(orders, list(map(Lease, *columns)), counted)


@dataclass(frozen=True)
class Cancel:
    """Nobody wants the result of this task any more."""

    task_id: int


@dataclass(frozen=True)
class Said:
    """How tasks ended. A worker receives a bare list, with one `Ends` for all that finished."""

    outcomes: Sequence[Outcome]

    def __reduce__(self) -> tuple[Any, ...]:
        finished = [one for one in self.outcomes if isinstance(one, Finished)]
        troubles = [one for one in self.outcomes if not isinstance(one, Finished)]
        if not finished:
            return list, (troubles,)
        done, *rest = zip(*finished, strict=True)
        columns = list(zip(*map(_completion_fields, done), strict=True))
        return _heard, (columns, rest, troubles)


def _heard(
    columns: list[tuple[Any, ...]], rest: list[tuple[Any, ...]], troubles: list[Trouble]
) -> list[Ends | Trouble]:
    return [Ends(list(map(Completion, *columns)), *rest), *troubles]
