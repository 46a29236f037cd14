"""Events as people and programs are shown them, and reading them from a ledger.

What is printed by `--json`, sent by the API and published is made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from intermission.model import Event
from intermission.ports.ledger import Ledger

EVENTS_VERSION = 1
"""Of the shapes in docs/reference/events.md."""
_PAGE = 10_000


def timestamp(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def event_fields(event: Event) -> dict[str, Any]:
    """A change in a ledger: of a task, of a job as a whole, or of a task's progress alone."""
    kind = "task" if event.progress is None else "progress"
    return {
        "event": "job" if event.task_id is None else kind,
        "seq": event.seq,
        "at": timestamp(event.at_ms),
        "job": event.job_key,
        "task": event.task,
        "was": event.was,
        "now": event.now,
        "fence": event.fence,
        "worker": event.worker,
        "message": event.message,
        "progress": event.progress,
    }


def events_after(ledger: Ledger, seq: int) -> Iterator[Event]:
    """Every event after a sequence number that is there by now."""
    while page := ledger.events(seq, limit=_PAGE):
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
