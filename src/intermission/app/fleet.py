"""A fleet: jobs put into a shared ledger, and a worker that takes tasks from it."""

from __future__ import annotations

import atexit
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from intermission.app.composition import App
from intermission.app.look import EVENTS_VERSION, event_fields
from intermission.app.places import Place, as_place
from intermission.app.preview import Previews
from intermission.app.run import start_guardian
from intermission.app.shared import shared_ledger
from intermission.backends.bell import open_bells
from intermission.backends.notices.imds import watching
from intermission.engine.assignment import Assignment
from intermission.engine.tally import Tally
from intermission.engine.workspace import Workspace
from intermission.errors import UsageError
from intermission.fleet import FleetWorker
from intermission.fleet.publishing import Publishing
from intermission.model import Event, Job
from intermission.pipeline import load
from intermission.pipeline.load import resolve
from intermission.ports.bell import Bell
from intermission.ports.ledger import Ledger
from intermission.settings import Settings
from intermission.upkeep.staged import bring_back


class Fleet:
    """One ledger for all jobs, whoever works on them."""

    def __init__(self, settings: Settings, *, patience_s: float | None = None) -> None:
        """`patience_s` is how long calls wait for a database that is away."""
        self.settings = settings
        self.app = App(settings)
        if patience_s is not None:
            self.app.shared = shared_ledger(settings, patience_s=patience_s)
        if self.app.shared is None:
            raise UsageError(
                "no ledger is named that workers could share.",
                remedy="Give one with --ledger (postgresql://host/name, or a SQLite file), or a "
                "server with --server.",
            )
        self._open = self.app.shared
        self._threads = threading.local()
        self._opened_bells: Sequence[Bell] | None = None

    def open_ledger(self) -> Ledger:
        """A new instance; the caller closes it."""
        return self._open()

    @property
    def ledger(self) -> Ledger:
        """The instance of the calling thread, kept open."""
        if not hasattr(self._threads, "ledger"):
            self._threads.ledger = self._open()
        return self._threads.ledger

    def workspace(self, job: Job) -> Workspace:
        """Where a job's receipts, artifacts and outputs are."""
        return self.app.workspace_of_job(job, load(job.ref).output)

    def submit(
        self,
        ref: str,
        place: str | Place,
        params: Mapping[str, Any],
        *,
        priority: int = 0,
        not_before_ms: int = 0,
    ) -> tuple[Job, bool]:
        """Put the job of a source into the ledger, for any worker to work on.

        False if it was there: then what had failed of it starts again.
        """
        where = as_place(place) if isinstance(place, str) else place
        if self.settings.server is not None:
            from intermission.app.remote import submit_remotely

            how = {"priority": priority, "not_before_ms": not_before_ms}
            params = self.app.params_of(load(ref), where, params)
            key, is_new = submit_remotely(self.settings, load(ref).name, where, params, **how)
            return self.ledger.jobs(key)[0].job, is_new
        submission = self.app.submit(
            load(ref),
            resolve(ref),
            where,
            params,
            priority=priority,
            not_before_ms=not_before_ms,
            lent=self.ledger,
        )
        submission.held.close()
        self.ring(priority)
        return submission.job, submission.is_new

    def ring(self, priority: int = 0) -> None:
        """Wake a worker, where bells are set up."""
        for bell in self._bells():
            bell.ring(priority)

    def _bells(self) -> Sequence[Bell]:
        if self._opened_bells is None:
            self._opened_bells = [] if self.settings.server else open_bells(self.settings)
            for bell in self._opened_bells:
                atexit.register(bell.close)  # which sends the last ring
        return self._opened_bells

    def open_job(self, ledger: Ledger, key: str) -> Assignment:
        """What a worker needs to run the tasks of a job."""
        (row,) = ledger.jobs(key)
        job, workspace = row.job, self.workspace(row.job)
        if self.settings.server is not None:
            from intermission.backends.http.workspace import job_from_here

            job = job_from_here(job, self.settings.server)
        store = workspace.open_store()
        bring_back(ledger, store, job)
        return Assignment(workspace, job, ledger, store, Tally())


def work(settings: Settings, *, on_ready: Callable[[FleetWorker], None]) -> str | None:
    """Take tasks from the shared ledger until a drain; the reason for it."""
    guardian = start_guardian()
    if settings.server_key is not None:  # it is this worker that asks, not the administrator
        settings = settings.model_copy(update={"admin_secret": None})
    with ExitStack() as held:
        held.callback(guardian.close)
        fleet = Fleet(settings)
        ledger = held.enter_context(closing(fleet.open_ledger()))
        bells = [held.enter_context(closing(bell)) for bell in open_bells(settings)]
        hooks: dict[str, Any] = {}
        if settings.redis_url is not None:
            from intermission.backends.progress import RedisProgress

            progress = held.enter_context(closing(RedisProgress(settings.redis_url, _message)))
            publishing = Publishing(ledger, progress.tell, fleet.app.clock)
            ledger = publishing.ledger
            hooks = {"on_tick": publishing.look, "on_progress": publishing.progressed}
        previews = held.enter_context(closing(Previews()))

        def open_job(key: str) -> Assignment:
            assignment = fleet.open_job(ledger, key)
            previews.watch(assignment, load(assignment.job.ref))
            return assignment

        worker = FleetWorker(
            guardian,
            settings,
            ledger,
            open_job,
            bells=bells,
            clock=fleet.app.clock,
            **hooks,
        )
        on_ready(worker)
        held.enter_context(watching(settings, fleet.app.clock, worker.drain))
        if settings.server is not None:
            from intermission.app.remote import credentials
            from intermission.backends.http.membership import beating

            url, key = credentials(settings)
            held.enter_context(beating(url, key, lambda: (settings.slots, worker.busy)))
        return worker.work()
    raise AssertionError("nothing here swallows an error")


def _message(event: Event) -> str:
    """What is published of an event: the line that `--jsonl` prints."""
    return json.dumps({"v": EVENTS_VERSION, **event_fields(event)})


def register_worker(
    settings: Settings, name: str, *, expires_s: float | None = None
) -> tuple[str, str]:
    """Make a worker known to the server: its id, and its key, which is never shown again."""
    from intermission.backends.http.membership import register

    assert settings.server is not None
    assert settings.admin_secret is not None
    secret = settings.admin_secret.get_secret_value()
    return register(settings.server, secret, name, can=settings.can, expires_s=expires_s)
