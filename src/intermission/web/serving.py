"""Running the server: the socket, the signals, and an end that leaves nobody waiting."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from intermission.composition.fleet import Fleet
from intermission.composition.registries import open_registry
from intermission.composition.uploads import Uploads
from intermission.errors import EnvironmentFault, UsageError
from intermission.operations.documents import event_line
from intermission.services.alerting import alert_services
from intermission.services.retention import retention_services
from intermission.services.supervisor import Service
from intermission.services.watch_scheduler import server_watches
from intermission.settings import Settings
from intermission.web.app import create_app
from intermission.web.auth import secret_of
from intermission.web.connections import Connections, connections_max
from intermission.web.middleware import is_loopback

LEDGER_NAME = "ledger.sqlite"
PATIENCE_S = 2.0
"""How long a request waits for a database that is away: who asks is told soon, and asks again."""
_BACKLOG = 2048
"""How many connections may wait to be accepted."""
_ACCEPTED_AT_ONCE = 32
"""asyncio accepts so many before any of them is looked at. More of them could use up the open
files that are kept back, and then nobody is accepted for a long time."""


def served(settings: Settings) -> Settings:
    """The settings of a server: it uses no other server, and keeps a ledger if none is named."""
    path = settings.data_dir.expanduser().resolve() / LEDGER_NAME
    return settings.model_copy(update={"server": None, "ledger": settings.ledger or str(path)})


def serve(
    settings: Settings,
    *,
    host: str,
    port: int,
    roots: Sequence[Path],
    on_ready: Callable[[str], None],
) -> None:
    """Serve until a signal; `on_ready` is told the server's address."""
    if not is_loopback(host) and not secret_of(settings.admin_secret):
        raise UsageError(
            f"a server that listens on {host} can be reached from other machines, and nothing "
            "protects it.",
            remedy="Set admin_secret (INTERMISSION_ADMIN_SECRET), or listen on 127.0.0.1.",
        )
    settings = served(settings)
    fleet = Fleet(settings, patience_s=PATIENCE_S)
    fleet.app.catalog.names()  # so that a pipeline which does not load is told now
    fleet.open_ledger().close()  # so that a ledger which is not there is told in one sentence
    with (
        closing(open_registry(settings)) as registry,
        ExitStack() as opened,
        _listening(host, port) as listener,
    ):
        services = [
            *alert_services(fleet, Uploads(settings), opened),
            *server_watches(fleet),
            *retention_services(fleet),
            *_progress_services(fleet, opened),
        ]
        app = create_app(fleet, registry, roots=roots, services=services)
        config = uvicorn.Config(
            app,
            loop="asyncio",  # whatever else is installed: these are what we know the limits of
            http=Connections(connections_max()).protocol,  # type: ignore[arg-type]
            backlog=_ACCEPTED_AT_ONCE,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        )
        _Server(config, app, lambda: on_ready(_address(listener))).run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that says when it listens, and ends by a signal without passing it on."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._hub = app.state.hub
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # A stream has no end of its own, and the server waits for every answer to end.
        self._hub.close()
        await super().shutdown(sockets=sockets)


def _progress_services(fleet: Fleet, opened: ExitStack) -> list[Service]:
    publisher = fleet.progress_publisher(event_line)
    if publisher is None:
        return []
    opened.callback(publisher.close)
    run = publisher.run
    return [
        Service("progress to Redis", lambda stop: run(stop, stop.succeeded), is_essential=False)
    ]


def _listening(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as e:
        raise EnvironmentFault(
            f"the server cannot listen on {host}, port {port}: {(e.strerror or str(e)).lower()}.",
            remedy="Choose another --port or --host; 0 takes any port that is free.",
        ) from e
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
