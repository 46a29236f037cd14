"""Reading the events of a ledger in order, and the times they have for people."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from intermission.model import Event
from intermission.ports.ledger import Ledger

_PAGE = 10_000


def timestamp(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def events_after(ledger: Ledger, seq: int, job: str | None = None) -> Iterator[Event]:
    """Every event after a sequence number that is there by now."""
    while page := ledger.events(seq, job=job, limit=_PAGE):
        yield from page
        seq = page[-1].seq


def last_event(ledger: Ledger, job: str | None = None, until_ms: int | None = None) -> int:
    """The sequence number of the newest event, found without reading the others.

    With `job` and `until_ms`, of that job's newest until then.
    """

    def is_last(seq: int) -> bool:
        later = ledger.events(seq, job=job, limit=1)
        return not later or (until_ms is not None and later[0].at_ms > until_ms)

    return first_number(is_last)


def first_number(holds: Callable[[int], bool]) -> int:
    """The smallest number from 0 on for which this holds, as it does for all above it."""
    high = 1
    while not holds(high):
        high *= 2
    return bisect_left(range(high), True, key=holds)
