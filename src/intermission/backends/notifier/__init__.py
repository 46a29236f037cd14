"""Notifiers: implementations of the port, and which of them the settings ask for."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from intermission.errors import UsageError
from intermission.ports.notifier import Notifier
from intermission.settings import Settings


def open_notifiers(settings: Settings) -> list[Notifier]:
    """The notifiers to notify and to listen to; none where polling is all there is.

    Connects to nothing yet: a server that is away is no reason not to start. Raises `UsageError`
    for settings that do not fit together, `EnvironmentFault` for a package that is missing.
    """
    notifiers: list[Notifier] = []
    database = _database(settings)
    if settings.notifiers in ("database", "hybrid") and database is None:
        raise UsageError(
            f"notifiers is {settings.notifiers}, and the ledger is not in PostgreSQL.",
            remedy="Name one as ledger (postgresql://host/name), or set notifiers to redis or off.",
        )
    if settings.notifiers in ("redis", "hybrid") and settings.redis_url is None:
        raise UsageError(
            f"notifiers is {settings.notifiers}, and redis_url does not say where.",
            remedy="Set redis_url, such as redis://host:6379/0, or set notifiers to auto.",
        )
    if settings.notifiers in ("auto", "database", "hybrid") and database is not None:
        from intermission.backends.notifier.postgres import PostgresNotifier

        notifiers.append(PostgresNotifier(database))
    if settings.notifiers in ("redis", "hybrid") and settings.redis_url is not None:
        from intermission.backends.notifier.redis import RedisNotifier

        notifiers.append(RedisNotifier(settings.redis_url, fleet=fleet_name(settings)))
    return notifiers


def fleet_name(settings: Settings) -> str:
    """A name that workers of one ledger share, however they log in to it.

    Two that spell its address differently do not reach each other, and find work by polling.
    """
    place = settings.ledger or settings.server or ""
    if "://" in place:
        parts = urlsplit(place)
        place = f"{parts.hostname}:{parts.port}{parts.path}"
    else:
        place = str(Path(place).expanduser().resolve())
    return f"fleet-{sha256(place.encode()).hexdigest()[:12]}"


def _database(settings: Settings) -> str | None:
    url = settings.ledger or ""
    return url if url.startswith(("postgresql://", "postgres://")) else None
