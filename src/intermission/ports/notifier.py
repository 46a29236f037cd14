"""The notifier as workers see it: a hint that work is there.

A notifier may lie, be late, be lost or be away for days. Polling is always on, so that a lost hint
costs a poll interval and nothing else; a notifier decides nothing but when to ask the ledger.
"""

from __future__ import annotations

from typing import Protocol


class Notifier(Protocol):
    """Any thread may notify; one thread waits for an instance; never carried across a fork."""

    @property
    def failures(self) -> int:
        """How many attempts to send or to listen went wrong so far; an outage is logged once."""
        ...

    def notify(self) -> None:
        """Hint that there is work, after it is in the ledger. Raises nothing and soon returns.

        A notifier whose hints the ledger sends by itself does nothing here.
        """
        ...

    def fileno(self) -> int:
        """For `select`: readable while there is a hint that was not cleared.

        The first call begins to listen. A notifier that begins to listen, or does so again after an
        outage, is readable once without a hint: it cannot know what it missed.
        """
        ...

    def clear(self) -> None:
        """Take the hints off, before asking the ledger: quiet until the next. Raises nothing."""
        ...

    def close(self) -> None:
        """Stop listening. What comes later is lost; a second call does nothing."""
        ...
