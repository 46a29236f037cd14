"""A worker's membership in a fleet behind a server: how it registers, and its heartbeats.

Heartbeats only tell people how the worker is. One that is not answered is logged, and stops
nothing: leases are kept elsewhere.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from intermission import __version__
from intermission.backends.http import work_schema as wire
from intermission.backends.http.api_client import ApiClient
from intermission.backends.http.client import LEDGER, server
from intermission.errors import LedgerError

log = logging.getLogger(__name__)

_PATIENCE_S = 5.0
_JSON = {"Content-Type": "application/json"}


def register(
    url: str,
    secret: str,
    name: str,
    *,
    can: Collection[str] = (),
    metadata: Mapping[str, Any] | None = None,
    expires_s: float | None = None,
) -> tuple[str, str]:
    """The id and the key of a new worker. The server shows the key only this once."""
    asked = wire.Registration(
        name=name,
        version=__version__,
        can=tuple(can),
        metadata=dict(metadata or {}),
        expires_s=expires_s,
    )
    answer = ApiClient(url, secret).ask(
        "registering this worker",
        "POST",
        "/workers",
        asked.model_dump(mode="json"),
        patience_s=0,  # a repeat would register another
    )
    return answer["id"], answer["key"]


def heartbeat(url: str, key: str, *, slots: int, busy: int) -> None:
    """One sign of life. Raises `LedgerError`."""
    said = wire.WorkerHeartbeat(version=__version__, slots=slots, busy=busy)
    server(url, key).call(
        "the heartbeat",
        "POST",
        wire.HEARTBEAT,
        lambda response: response.read(),
        faults=LEDGER,
        body=said.model_dump_json().encode(),
        headers=_JSON,
        patience_s=_PATIENCE_S,
        timeout_s=_PATIENCE_S,
    )


@contextmanager
def beating(
    url: str,
    key: str,
    load: Callable[[], tuple[int, int]],
    *,
    every_s: float = wire.HEARTBEAT_EVERY_S,
) -> Generator[None, None, None]:
    """Heartbeats, now and then, from a thread beside the work; `load` is (slots, busy)."""
    end = threading.Event()

    def run() -> None:
        while True:
            slots, busy = load()
            try:
                heartbeat(url, key, slots=slots, busy=busy)
            except LedgerError as e:
                log.warning("%s", e)
            if end.wait(every_s):
                return

    thread = threading.Thread(target=run, name="heartbeats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(_PATIENCE_S)
