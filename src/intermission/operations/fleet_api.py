"""All jobs of a fleet together: their failures, their limits, and those that ended long ago.

`LedgerFleet` asks a shared ledger; `server_api.ServerApi` asks a server, whose endpoints ask
`LedgerFleet` in turn. Both answer with the documents that `--json` prints.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, replace
from itertools import islice
from typing import Protocol

from intermission.composition.app import App
from intermission.composition.fleet import Fleet
from intermission.maintenance.pruning import ENDED, forget_if_old, old_jobs
from intermission.model import JobState, Limit
from intermission.operations.documents import (
    FailureDocument,
    LimitDocument,
    PrunedJob,
    PrunedPage,
)
from intermission.operations.failures import failure_groups, put_back_all

__all__ = ["ENDED", "FleetApi", "LedgerFleet", "fleet_api"]

PRUNED_AT_ONCE = 500


class FleetApi(Protocol):
    """What is asked about all jobs. `None` for a pipeline, a step or an error means any."""

    def failures(
        self, *, pipeline: str | None, step: str | None, error: str | None
    ) -> list[FailureDocument]: ...

    def retry_failures(
        self, *, pipeline: str | None, step: str | None, error: str | None
    ) -> int: ...

    def limits(self) -> list[LimitDocument]: ...

    def set_limit(self, name: str, running: int | None, per_minute: float | None) -> object:
        """Without any bound, the limit is removed. What is paused stays paused."""
        ...

    def set_paused(self, name: str, paused: bool) -> object: ...

    def prune(
        self,
        older_than_s: float,
        *,
        states: Collection[JobState],
        pipeline: str | None,
        dry_run: bool,
        cursor: str | None,
    ) -> PrunedPage:
        """Forget jobs that ended long ago, or say which, a page at a time."""
        ...


def fleet_api(app: App) -> FleetApi:
    """Of the server or the shared ledger that the settings name. Raises `UsageError` for none."""
    if app.server is not None:
        from intermission.operations.server_api import ServerApi

        return ServerApi(app.server)
    return LedgerFleet(Fleet(app.settings))


class LedgerFleet:
    """A fleet whose ledger is reached from here."""

    def __init__(self, fleet: Fleet, *, jobs_max: int | None = None) -> None:
        """`jobs_max` is how many jobs are named in a group of failures."""
        self._fleet = fleet
        self._jobs_max = jobs_max

    def failures(
        self, *, pipeline: str | None, step: str | None, error: str | None
    ) -> list[FailureDocument]:
        groups = failure_groups(self._fleet.ledger, pipeline=pipeline, step=step, error=error)
        return [FailureDocument.of(group, self._jobs_max) for group in groups]

    def retry_failures(self, *, pipeline: str | None, step: str | None, error: str | None) -> int:
        ledger = self._fleet.ledger
        groups = failure_groups(ledger, pipeline=pipeline, step=step, error=error)
        changed = put_back_all(ledger, groups)
        if changed:
            self._fleet.notify()
        return changed

    def limits(self) -> list[LimitDocument]:
        return [LimitDocument(**asdict(one)) for one in self._fleet.ledger.limits()]

    def set_limit(self, name: str, running: int | None, per_minute: float | None) -> LimitDocument:
        return self._kept(replace(self._limit(name), running=running, per_minute=per_minute))

    def set_paused(self, name: str, paused: bool) -> LimitDocument:
        return self._kept(replace(self._limit(name), paused=paused))

    def _limit(self, name: str) -> Limit:
        """The limit of this name, which may bound nothing."""
        return next((one for one in self._fleet.ledger.limits() if one.name == name), Limit(name))

    def _kept(self, limit: Limit) -> LimitDocument:
        self._fleet.ledger.limit(limit)
        return LimitDocument(**asdict(limit))

    def prune(
        self,
        older_than_s: float,
        *,
        states: Collection[JobState],
        pipeline: str | None,
        dry_run: bool,
        cursor: str | None,
    ) -> PrunedPage:
        ledger = self._fleet.ledger
        before_ms = self._fleet.app.clock.now_ms() - int(older_than_s * 1000)
        before = None if cursor is None else int(cursor)
        found = old_jobs(ledger, before_ms, states=states, pipeline=pipeline, before=before)
        page = list(islice(found, PRUNED_AT_ONCE))
        return PrunedPage(
            jobs=[
                PrunedJob.of(row)
                for row in page
                if dry_run or forget_if_old(ledger, row.job.key, before_ms)
            ],
            next=str(page[-1].id) if len(page) == PRUNED_AT_ONCE else None,
        )
