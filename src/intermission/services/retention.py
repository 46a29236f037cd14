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

    def __init__(self, fleet: Fleet, keep_s: float) -> None:
        self._fleet = fleet
        self._keep_s = keep_s

    def run(self, stop: Supervision) -> None:
        while not stop.is_set():
            self.prune(stop)
            stop.succeeded()
            stop.wait(min(PRUNE_EVERY_S, max(1.0, self._keep_s / 10)))

    def prune(self, stop: Supervision) -> int:
        """One pass over the ledger: how many jobs it forgot."""
        before_ms = self._fleet.app.clock.now_ms() - int(self._keep_s * 1000)
        forgotten = 0
        with closing(self._fleet.open_ledger()) as ledger:
            for row in old_jobs(ledger, before_ms):
                if stop.is_set():
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
    return [Service("retention", Retention(fleet, keep_s).run, is_essential=False)]
