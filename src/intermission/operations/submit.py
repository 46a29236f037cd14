"""`submit`: sources into a shared ledger or onto a server, for its workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intermission.composition.fleet import Fleet
from intermission.composition.locations import Location
from intermission.errors import IntermissionError
from intermission.operations.documents import ErrorDocument, SubmittedJob
from intermission.pipeline import Pipeline


@dataclass(frozen=True)
class Submitted:
    """A source that was submitted, or why it could not be."""

    place: Location
    key: str | None = None
    is_new: bool | None = None
    error: IntermissionError | None = None

    def document(self) -> SubmittedJob:
        return SubmittedJob(
            source=str(self.place),
            job=self.key,
            new=self.is_new,
            error=None if self.error is None else ErrorDocument.of(self.error),
        )


def submit_each(
    fleet: Fleet,
    pipeline: Pipeline,
    places: Sequence[Location],
    params: Mapping[str, Any],
    *,
    priority: int = 0,
    not_before_ms: int = 0,
) -> Iterator[Submitted]:
    """One source after the other; one that cannot be submitted stops no other."""
    how: dict[str, Any] = {"priority": priority, "not_before_ms": not_before_ms}
    for place in places:
        try:
            key, is_new = fleet.submit(pipeline, place, params, **how)
        except IntermissionError as e:
            yield Submitted(place, error=e)
        else:
            yield Submitted(place, key, is_new)
