"""A fleet: jobs put into a shared ledger, and a worker that takes tasks from it."""

from __future__ import annotations

import atexit
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from intermission.backends.notifier import fleet_name, open_notifiers
from intermission.backends.progress_publisher import ProgressPublisher
from intermission.backends.work_source.open_job import OpenJob, job_row
from intermission.composition.app import App
from intermission.composition.event_log import last_event
from intermission.composition.ledgers import shared_ledger
from intermission.composition.locations import Location, as_location, location_of
from intermission.engine.workspace import Workspace
from intermission.errors import NoPipeline, UsageError
from intermission.maintenance.superseded_outputs import bring_back
from intermission.model import Event, Job, Source
from intermission.pipeline import Pipeline
from intermission.ports.ledger import Ledger
from intermission.ports.notifier import Notifier
from intermission.settings import Settings

RETRY_DELAYS_S = (60.0, 300.0, 900.0)
"""Between attempts on a fleet, unless the settings or the step say otherwise."""
RETRY_JITTER = 0.2


def fleet_delays(settings: Settings) -> tuple[Sequence[float], float]:
    """Between attempts, and the share by which each is longer or shorter."""
    own = "retry_delays_s" in settings.model_fields_set
    return settings.retry_delays_s if own else RETRY_DELAYS_S, RETRY_JITTER


class Fleet:
    """One ledger for all jobs, whoever works on them."""

    def __init__(self, settings: Settings, *, patience_s: float | None = None) -> None:
        """`patience_s` is how long calls wait for a database that is away."""
        self.settings = settings
        self.app = App(settings)
        if patience_s is not None:
            self.app.shared = shared_ledger(settings, patience_s=patience_s)
        if self.app.shared is None and settings.server is None:
            raise UsageError(
                "no ledger is named that workers could share.",
                remedy="Give one with --ledger (postgresql://host/name, or a SQLite file), or a "
                "server with --server.",
            )
        self._threads = threading.local()
        self._opened_notifiers: Sequence[Notifier] | None = None

    def open_ledger(self) -> Ledger:
        """A new instance; the caller closes it."""
        assert self.app.shared is not None, "a server has its ledger to itself"
        return self.app.shared()

    @property
    def ledger(self) -> Ledger:
        """The instance of the calling thread, kept open."""
        if not hasattr(self._threads, "ledger"):
            self._threads.ledger = self.open_ledger()
        return self._threads.ledger

    def pipeline(self, job: Job) -> Pipeline | None:
        """The code of a job, where this process has it."""
        try:
            return self.app.catalog.of(job).pipeline
        except NoPipeline:
            return None

    def workspace(self, job: Job) -> Workspace:
        """Where a job's receipts, artifacts and outputs are."""
        return self.app.workspace_of_job(job, job.output)

    def submit(
        self,
        pipeline: Pipeline,
        place: str | Location,
        params: Mapping[str, Any],
        *,
        priority: int = 0,
        not_before_ms: int = 0,
        source: Source | None = None,
    ) -> tuple[str, bool]:
        """Put the job of a source into the ledger, for any worker to work on; its key.

        False if it was there: then what had failed of it starts again. With `source`, the place
        has that one, and is not read again.
        """
        where = as_location(place) if isinstance(place, str) else place
        if self.app.server is not None:
            from intermission.composition.server_client import submit_remotely

            how = {"priority": priority, "not_before_ms": not_before_ms}
            params = self.app.params_of(pipeline, where, params)
            return submit_remotely(self.app.server, pipeline.name, where, params, **how)
        submission = self.app.submit(
            pipeline,
            where,
            params,
            priority=priority,
            not_before_ms=not_before_ms,
            known=source,
            lent=self.ledger,
        )
        submission.held.close()
        self.notify()
        return submission.job.key, submission.is_new

    def has_job(self, key: str) -> bool:
        """Whether the job with this key was submitted before."""
        if self.app.server is not None:
            from intermission.composition.server_client import has_job

            return has_job(self.app.server, key)
        return bool(self.ledger.jobs(key, limit=1))

    def start_over(self, job: Job) -> None:
        """Submit a job afresh: what was finished of it goes into quarantine and runs again."""
        submission = self.app.submit(
            self.app.catalog.of(job).pipeline,
            location_of(job.source),
            json.loads(job.params),
            fresh=True,
            expected=job.key,
            priority=job.priority,
            known=job.source,
            lent=self.ledger,
        )
        submission.held.close()
        self.notify()

    def notify(self) -> None:
        """Wake a worker, where notifiers are set up."""
        for notifier in self._notifiers():
            notifier.notify()

    def _notifiers(self) -> Sequence[Notifier]:
        if self._opened_notifiers is None:
            self._opened_notifiers = [] if self.settings.server else open_notifiers(self.settings)
            for notifier in self._opened_notifiers:
                atexit.register(notifier.close)  # which sends the last hint
        return self._opened_notifiers

    def progress_publisher(self, describe: Callable[[Event], str]) -> ProgressPublisher | None:
        """What publishes the event log to Redis, if the settings say where."""
        if self.settings.redis_url is None:
            return None
        return ProgressPublisher(
            self.settings.redis_url,
            fleet_name(self.settings),
            self.open_ledger,
            newest=last_event,
            describe=describe,
        )

    def open_job(self, ledger: Ledger, key: str, worker: str) -> OpenJob:
        """What a worker needs to run the tasks of a job."""
        job = ledger.job(key) or job_row(ledger, key).job
        workspace = self.workspace(job)
        ref = self.app.catalog.of(job).ref
        store = workspace.open_store()
        bring_back(ledger, store, job)
        delays_s, jitter = fleet_delays(self.settings)
        delays: dict[str, Any] = {"delays_s": delays_s, "jitter": jitter}
        return OpenJob(workspace, job, ledger, store, worker, self.settings, ref=ref, **delays)
