"""A worker of a fleet: put together, and run until it is asked to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial

from intermission.backends.executor.local import LocalExecutor
from intermission.backends.interruption.imds import watching
from intermission.backends.notifier import open_notifiers
from intermission.backends.progress_publisher import publishing
from intermission.backends.work_source.host_faults import check_scratch
from intermission.backends.work_source.open_job import OpenJob
from intermission.backends.work_source.shared_jobs import SharedJobs
from intermission.backends.work_source.worker_locks import worker_name
from intermission.composition.app import App, start_reaper
from intermission.composition.fleet import Fleet
from intermission.composition.locations import scratch_of
from intermission.engine.lease_renewer import LeaseRenewer
from intermission.engine.worker import Worker
from intermission.maintenance.preview import Previews
from intermission.operations.documents import event_line
from intermission.operations.media_protection import log_missing
from intermission.ports.clock import Clock
from intermission.scratch import Scratch
from intermission.settings import Settings

log = logging.getLogger(__name__)


def work(settings: Settings, *, on_ready: Callable[[str], None]) -> str | None:
    """Take tasks from the shared ledger, or from a server, until a drain; the reason for it.

    `on_ready` is told the name of the worker.
    """
    reaper = start_reaper()
    name = worker_name()
    Scratch(scratch_of(settings)).clean()
    with ExitStack() as held:
        held.callback(reaper.close)
        join = _join_fleet if settings.server is None else _join_server
        source, clock = join(settings, name, held)
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
        )
        log_missing(settings)
        on_ready(name)
        held.enter_context(watching(settings, clock, worker.drain))
        if settings.server is not None:
            from intermission.composition.server_client import heartbeats

            held.enter_context(heartbeats(settings, lambda: (settings.slots, worker.busy)))
        return worker.run()
    raise AssertionError("nothing here swallows an error")


def _join_fleet(settings: Settings, name: str, held: ExitStack) -> tuple[SharedJobs, Clock]:
    """Work of a shared ledger."""
    fleet = Fleet(settings)
    clock, catalog = fleet.app.clock, fleet.app.catalog
    log.info("pipelines: %s", ", ".join(sorted(catalog.codes)))
    ledger = held.enter_context(closing(fleet.open_ledger()))
    notifiers = [held.enter_context(closing(notifier)) for notifier in open_notifiers(settings)]
    if (publisher := fleet.progress_publisher(event_line)) is not None:
        held.enter_context(publishing(publisher))
    previews = held.enter_context(closing(Previews()))

    def open_job(key: str) -> OpenJob:
        opened = fleet.open_job(ledger, key, name)
        previews.watch(opened, catalog.of(opened.job).pipeline)
        return opened

    source = SharedJobs(
        ledger,
        open_job,
        name,
        settings,
        clock,
        notifiers,
        runs=catalog.codes,
        self_test=_self_test(settings),
    )
    return source, clock


def _join_server(settings: Settings, name: str, held: ExitStack) -> tuple[SharedJobs, Clock]:
    """Work of a server, which alone reaches the ledger and the storage."""
    from intermission.composition.server_client import remote_work

    app = App(settings)
    log.info("pipelines: %s", ", ".join(sorted(app.catalog.codes)))
    client, open_job = remote_work(settings, app.catalog, name)
    codes = app.catalog.codes
    test = _self_test(settings)
    source = SharedJobs(client, open_job, name, settings, app.clock, runs=codes, self_test=test)
    return source, app.clock


def _self_test(settings: Settings) -> Callable[[], None]:
    return partial(check_scratch, settings.cache_dir.expanduser())


def register_worker(
    settings: Settings, name: str, *, expires_s: float | None = None
) -> tuple[str, str]:
    """Make a worker known to the server: its id, and its key, which is never shown again."""
    from intermission.backends.http.registration import register

    assert settings.server is not None
    assert settings.admin_secret is not None
    secret = settings.admin_secret.get_secret_value()
    return register(settings.server, secret, name, can=settings.can, expires_s=expires_s)
