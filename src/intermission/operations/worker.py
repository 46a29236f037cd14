"""A worker of a fleet: put together, and run until it is asked to stop."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from intermission.backends.executor.local import LocalExecutor
from intermission.backends.interruption.imds import watching
from intermission.backends.notifier import open_notifiers
from intermission.backends.progress_events import ProgressEvents
from intermission.backends.work_source.shared_jobs import SharedJobs
from intermission.composition.app import start_reaper
from intermission.composition.fleet import Fleet
from intermission.engine.lease_renewer import LeaseRenewer
from intermission.engine.open_job import OpenJob
from intermission.engine.worker import Worker
from intermission.engine.workspace import worker_name
from intermission.maintenance.preview import Previews
from intermission.model import Event
from intermission.operations.documents import VERSION, EventDocument
from intermission.settings import Settings

log = logging.getLogger(__name__)


def work(settings: Settings, *, on_ready: Callable[[str], None]) -> str | None:
    """Take tasks from the shared ledger until a drain; the reason for it.

    `on_ready` is told the name of the worker.
    """
    reaper = start_reaper()
    if settings.server_key is not None:  # it is this worker that asks, not the administrator
        settings = settings.model_copy(update={"admin_secret": None})
    with ExitStack() as held:
        held.callback(reaper.close)
        fleet, name = Fleet(settings), worker_name()
        log.info("pipelines: %s", ", ".join(sorted(fleet.app.catalog.codes)))
        ledger = held.enter_context(closing(fleet.open_ledger()))
        notifiers = [held.enter_context(closing(notifier)) for notifier in open_notifiers(settings)]
        hooks: dict[str, Any] = {}
        if settings.redis_url is not None:
            from intermission.backends.progress_pubsub import RedisProgress

            progress = held.enter_context(closing(RedisProgress(settings.redis_url, _message)))
            publishing = ProgressEvents(ledger, progress.tell, fleet.app.clock)
            ledger = publishing.ledger
            hooks = {"on_tick": publishing.look, "on_progress": publishing.progressed}
        previews = held.enter_context(closing(Previews()))

        def open_job(key: str) -> OpenJob:
            opened = fleet.open_job(ledger, key, name)
            previews.watch(opened, fleet.app.catalog.of(opened.job).pipeline)
            return opened

        clock = fleet.app.clock
        source = SharedJobs(
            ledger, open_job, name, settings, clock, notifiers, runs=fleet.app.catalog.codes
        )
        worker = Worker(
            source,
            LeaseRenewer(
                name,
                clock,
                lease_ttl_s=source.lease_ttl_s,
                renew_every_s=settings.renew_every_s,
            ),
            LocalExecutor(reaper, settings.slots),
            clock,
            drain_s=settings.drain_s,
            **hooks,
        )
        on_ready(name)
        held.enter_context(watching(settings, clock, worker.drain))
        if settings.server is not None:
            from intermission.backends.http.registration import beating
            from intermission.composition.server_client import credentials

            url, key = credentials(settings)
            held.enter_context(beating(url, key, lambda: (settings.slots, worker.busy)))
        return worker.run()
    raise AssertionError("nothing here swallows an error")


def _message(event: Event) -> str:
    """What is published of an event: the line that `--jsonl` prints."""
    return json.dumps({"v": VERSION, **EventDocument.of(event).model_dump(mode="json")})


def register_worker(
    settings: Settings, name: str, *, expires_s: float | None = None
) -> tuple[str, str]:
    """Make a worker known to the server: its id, and its key, which is never shown again."""
    from intermission.backends.http.registration import register

    assert settings.server is not None
    assert settings.admin_secret is not None
    secret = settings.admin_secret.get_secret_value()
    return register(settings.server, secret, name, can=settings.can, expires_s=expires_s)
