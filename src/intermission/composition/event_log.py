"""Reading the events of a ledger in order, and the times they have for people."""

from __future__ import annotations

from collections.abc import Iterator
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


def last_event(ledger: Ledger) -> int:
    """The sequence number of the newest event, found without reading the others."""
    high = 1
    while ledger.events(high, limit=1):
        high *= 2
    low = high // 2
    while low < high:
        middle = (low + high) // 2
        if ledger.events(middle, limit=1):
            low = middle + 1
        else:
            high = middle
    return low
