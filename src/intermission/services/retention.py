"""Retention: jobs that ended long ago leave a server's ledger by themselves."""

from __future__ import annotations

import logging
from contextlib import closing

from intermission.composition.fleet import Fleet
from intermission.maintenance.pruning import forget_if_old, old_jobs
from intermission.services.supervisor import Service, Supervision

PRUNE_EVERY_S = 3600.0

log = logging.getLogger(__name__)


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
