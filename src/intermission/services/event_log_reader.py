"""Following the event log: one reader, whoever wants to know.

A reader is a service with its own ledger connection. It hands every event to its listener in
order; started again, it goes on where it was. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from intermission.composition.event_log import last_event
from intermission.model import Event
from intermission.ports.ledger import Ledger
from intermission.services.supervisor import Supervision

__all__ = ["PAGE", "EventLogReader", "Ledger", "Listener"]

PAGE = 1000

Listener = Callable[[Ledger, Sequence[Event]], None]


class EventLogReader:
    """Calls the listener after every page of events, and after every look that found nothing."""

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

    def run(self, stop: Supervision) -> None:
        """Read until it is stopped, or the ledger gives no answer."""
        with closing(self._open()) as ledger:
            if self._seq is None:
                self._seq = last_event(ledger)
            self._on_open(self._seq)
            while not stop.is_set():
                events = ledger.events(self._seq, limit=PAGE)
                self._listener(ledger, events)
                stop.succeeded()
                if events:
                    self._seq = events[-1].seq
                if len(events) < PAGE:
                    stop.wait(self._every_s)
