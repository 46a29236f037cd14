"""Where a server keeps its registry of workers: beside its ledger."""

from __future__ import annotations

from pathlib import Path

from intermission.backends.registry.sqlite import SqliteRegistry
from intermission.composition.locations import is_url
from intermission.ports.registry import Registry
from intermission.settings import Settings

REGISTRY_NAME = "workers.sqlite"


def open_registry(settings: Settings) -> Registry:
    """The registry beside the ledger that the settings name; the caller closes it."""
    if settings.ledger is None:
        folder = settings.data_dir.expanduser().resolve()
    elif is_url(settings.ledger):
        from intermission.backends.registry.postgres import PostgresRegistry

        return PostgresRegistry(settings.ledger)
    else:
        folder = Path(settings.ledger).expanduser().resolve().parent
    return SqliteRegistry(folder / REGISTRY_NAME)
