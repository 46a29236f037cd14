"""A worker of a fleet: put together, and run until it is asked to stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from intermission.backends.interruption.imds import watching
from intermission.backends.notifier import open_notifiers
from intermission.composition.app import start_reaper
from intermission.composition.fleet import Fleet
from intermission.engine.open_job import OpenJob
from intermission.fleet import FleetWorker
from intermission.fleet.progress_events import ProgressEvents
from intermission.maintenance.preview import Previews
from intermission.model import Event
from intermission.operations.documents import VERSION, EventDocument
from intermission.pipeline import load
from intermission.settings import Settings


def work(settings: Settings, *, on_ready: Callable[[FleetWorker], None]) -> str | None:
    """Take tasks from the shared ledger until a drain; the reason for it."""
    reaper = start_reaper()
    if settings.server_key is not None:  # it is this worker that asks, not the administrator
        settings = settings.model_copy(update={"admin_secret": None})
    with ExitStack() as held:
        held.callback(reaper.close)
        fleet = Fleet(settings)
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
            opened = fleet.open_job(ledger, key)
            previews.watch(opened, load(opened.job.ref))
            return opened

        worker = FleetWorker(
            reaper,
            settings,
            ledger,
            open_job,
            notifiers=notifiers,
            clock=fleet.app.clock,
            **hooks,
        )
        on_ready(worker)
        held.enter_context(watching(settings, fleet.app.clock, worker.drain))
        if settings.server is not None:
            from intermission.backends.http.registration import beating
            from intermission.composition.server_client import credentials

            url, key = credentials(settings)
            held.enter_context(beating(url, key, lambda: (settings.slots, worker.busy)))
        return worker.work()
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
