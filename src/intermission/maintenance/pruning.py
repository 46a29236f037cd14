"""Jobs that ended long ago: which they are, and how a shared ledger forgets one.

Receipts, artifacts and outputs stay where they are, so that a forgotten job that is submitted
again is found finished. No job that has not ended is touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from intermission.model import JobRow, JobState
from intermission.ports.ledger import Ledger

ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
PAGE = 200


def old_jobs(
    ledger: Ledger,
    before_ms: int,
    *,
    states: Collection[JobState] = ENDED,
    pipeline: str | None = None,
    before: int | None = None,
) -> Iterator[JobRow]:
    """Jobs that ended before a moment, newest first, read a page at a time.

    With `before`, only those with a lower number in the ledger.
    """
    while True:
        page = ledger.jobs(states=states, pipeline=pipeline, before=before, limit=PAGE)
        yield from (row for row in page if row.updated_ms < before_ms)
        if len(page) < PAGE:
            return
        before = page[-1].id


def forget_if_old(ledger: Ledger, key: str, before_ms: int) -> bool:
    """Forget a job unless it has started again meanwhile, or somebody holds a lease of it."""
    rows = ledger.jobs(key)
    return bool(
        rows
        and rows[0].state in ENDED
        and rows[0].updated_ms < before_ms
        and ledger.delete(rows[0].job.key)
    )
