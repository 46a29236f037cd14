"""Where a server keeps its registry of workers: beside its ledger."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from intermission.backends.registry.sqlite import SqliteRegistry
from intermission.composition.locations import is_url
from intermission.ports.registry import Registry, WorkerRow
from intermission.settings import Settings

REGISTRY_NAME = "workers.sqlite"


def open_registry(settings: Settings) -> Registry:
    """The registry beside the ledger that the settings name; the caller closes it."""
    if _is_in_database(settings):
        from intermission.backends.registry.postgres import PostgresRegistry

        return PostgresRegistry(str(settings.ledger))
    return SqliteRegistry(_path(settings))


def registered_workers(settings: Settings) -> list[WorkerRow]:
    """The workers in the registry; none, and nothing is made, where no server has made one."""
    if not _is_in_database(settings) and not _path(settings).exists():
        return []
    with closing(open_registry(settings)) as registry:
        return registry.workers()


def _is_in_database(settings: Settings) -> bool:
    return settings.ledger is not None and is_url(settings.ledger)


def _path(settings: Settings) -> Path:
    if settings.ledger is None:
        return settings.data_dir.expanduser().resolve() / REGISTRY_NAME
    return Path(settings.ledger).expanduser().resolve().parent / REGISTRY_NAME
