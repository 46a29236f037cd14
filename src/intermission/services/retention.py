"""Retention: jobs that ended long ago leave a shared ledger, with their tasks and events.

Receipts, artifacts and outputs stay where they are, so that a forgotten job that is submitted
again is found finished. Nothing here removes a file, and no job that has not ended is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import closing

from intermission.composition.fleet import Fleet
from intermission.model import JobRow, JobState
from intermission.ports.ledger import Ledger
from intermission.services.supervisor import Service, Supervision

ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
PAGE = 200
PRUNE_EVERY_S = 3600.0

log = logging.getLogger(__name__)


def old_jobs(
    ledger: Ledger,
    before_ms: int,
    *,
    states: Collection[JobState] = ENDED,
    pipeline: str | None = None,
) -> Iterator[JobRow]:
    """Jobs that ended before a moment, newest first, read a page at a time."""
    before: int | None = None
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


class Retention:
    """Forgets what is too old, once in a while, on behalf of a server."""

    def __init__(self, fleet: Fleet, keep_s: float, stop: Supervision) -> None:
        self._fleet = fleet
        self._keep_s = keep_s
        self._stop = stop

    def run(self) -> None:
        while not self._stop.is_set():
            self.prune()
            self._stop.succeeded()
            self._stop.wait(min(PRUNE_EVERY_S, max(1.0, self._keep_s / 10)))

    def prune(self) -> int:
        """One pass over the ledger: how many jobs it forgot."""
        before_ms = self._fleet.app.clock.now_ms() - int(self._keep_s * 1000)
        forgotten = 0
        with closing(self._fleet.open_ledger()) as ledger:
            for row in old_jobs(ledger, before_ms):
                if self._stop.is_set():
                    break
                forgotten += forget_if_old(ledger, row.job.key, before_ms)
        if forgotten:
            days = self._keep_s / 86_400
            log.info("jobs forgotten that ended more than %g days ago: %d", days, forgotten)
        return forgotten


def retention_services(fleet: Fleet) -> list[Service]:
    """Keep the ledger from growing for ever, if the settings say for how long jobs are kept."""
    keep_s = fleet.settings.keep_jobs_s
    if keep_s is None:
        return []
    # Old jobs that stay a while longer harm nobody.
    return [
        Service("retention", lambda stop: Retention(fleet, keep_s, stop).run, is_essential=False)
    ]
