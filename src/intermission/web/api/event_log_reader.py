"""Following the event log: one reader, whoever wants to know.

A tail owns a thread and a ledger of its own. It hands every event to its listener once, in
order, and goes on by itself when the ledger was away. It changes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from intermission.composition.event_log import last_event
from intermission.errors import IntermissionError
from intermission.model import Event
from intermission.ports.ledger import Ledger

PAGE = 1000
AWAY_S = 1.0

Listener = Callable[[Ledger, Sequence[Event]], None]

_LOG = logging.getLogger(__name__)


class Tail:
    """Calls the listener from its own thread: after every page of events, and after every look.

    A look that found nothing is an empty page.
    """

    def __init__(
        self,
        open_ledger: Callable[[], Ledger],
        listener: Listener,
        *,
        every_s: float,
        from_start: bool,
        on_open: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_open` is told the number of the last event before the first one handed over."""
        self._open = open_ledger
        self._listener = listener
        self._every_s = every_s
        self._seq: int | None = 0 if from_start else None
        self._on_open = on_open
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: IntermissionError | None = None
        """Why the log cannot be read at the moment."""

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="event-tail", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                ledger = self._open()
                try:
                    self._follow(ledger)
                finally:
                    ledger.close()
            except IntermissionError as e:
                if self.error is None:
                    _LOG.warning("the event log cannot be read: %s", e)
                self.error = e
                self._stop.wait(AWAY_S)

    def _follow(self, ledger: Ledger) -> None:
        if self._seq is None:
            self._seq = last_event(ledger)
        self._on_open(self._seq)
        while not self._stop.is_set():
            events = ledger.events(self._seq, limit=PAGE)
            self.error = None
            self._listener(ledger, events)
            if events:
                self._seq = events[-1].seq
            if len(events) < PAGE:
                self._stop.wait(self._every_s)
