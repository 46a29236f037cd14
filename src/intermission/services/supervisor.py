"""What a server does by itself, each in a thread that is started again when it fails.

A service works until it is told to stop. Whatever it raises is logged once,
shown by /readyz and the metrics, and followed by another start after a pause that grows with every
failure in a row. A service that returns has nothing left to do. Nothing here knows what a service
does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import uniform
from typing import Protocol

from intermission.errors import IntermissionError

PAUSE_S = 1.0
PAUSE_MAX_S = 60.0
STOP_S = 3.0
"""How long the end of a server waits for each: a name that is being resolved cannot be hurried."""

log = logging.getLogger(__name__)


class Supervision(Protocol):
    """What a service sees of its supervisor. The first two are those of a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for so long, or until it is time to stop; whether it is."""
        ...

    def succeeded(self) -> None:
        """To be told after every turn that went well: an error before it is over then."""
        ...


class Service:
    """One of them, and how it is doing."""

    def __init__(
        self,
        name: str,
        run: Callable[[Supervision], None],
        *,
        is_essential: bool = True,
        pause_max_s: float = PAUSE_MAX_S,
        hurry: Callable[[], None] = lambda: None,
        finish: Callable[[], None] | None = None,
    ) -> None:
        """`run` is what its thread calls, with this service as its supervision.

        A server is not ready while a service that `is_essential` fails. At the end `hurry` may
        cut short what it waits for, and `finish` is waited for in place of the thread's end.
        """
        self.name = name
        self.is_essential = is_essential
        self.restarts = 0
        """How often it was started again since the server started."""
        self.error: Exception | None = None
        """Why it last failed; None once it works again."""
        self._run = run
        self._pause_max_s = pause_max_s
        self._hurry = hurry
        self._finish = finish
        self._failures = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def is_set(self) -> bool:
        return self._stop.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._stop.wait(timeout)

    def succeeded(self) -> None:
        if self.error is not None:
            log.warning("%s works again", self.name)
        self.error, self._failures = None, 0

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._keep_running, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to stop, without waiting."""
        self._stop.set()
        self._hurry()

    def join(self, timeout_s: float = STOP_S) -> None:
        if self._finish is not None:
            self._finish()
        elif self._thread is not None:
            self._thread.join(timeout_s)

    def _keep_running(self) -> None:
        while not self._stop.is_set():
            try:
                self._run(self)
                return
            except Exception as e:  # a service that ends unseen is worse than any error
                self._failed(e)
            self._stop.wait(self._pause_s())
            self.restarts += not self._stop.is_set()

    def _failed(self, error: Exception) -> None:
        is_news = self.error is None or str(self.error) != str(error)
        self.error = error
        self._failures += 1
        if is_news:
            unexpected = None if isinstance(error, IntermissionError) else error
            log.warning("%s failed and is tried again: %s", self.name, error, exc_info=unexpected)

    def _pause_s(self) -> float:
        # Not all at once: what every service of every server needs may just have come back.
        pause_s = PAUSE_S * 2 ** min(self._failures - 1, 16)
        return min(pause_s, self._pause_max_s) * uniform(0.5, 1.0)


class Supervisor:
    """All services of a server."""

    def __init__(self, services: Iterable[Service] = ()) -> None:
        self.services = list(services)

    def failing(self) -> Service | None:
        """The first essential service that does not work; None where all do."""
        failing = (one for one in self.services if one.is_essential and one.error is not None)
        return next(failing, None)

    def start(self) -> None:
        for service in self.services:
            service.start()

    def stop(self) -> None:
        """Returns when all have stopped, or take too long."""
        for service in self.services:
            service.stop()
        for service in self.services:
            service.join()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run all of them while the context lasts."""
        self.start()
        try:
            yield
        finally:
            self.stop()
