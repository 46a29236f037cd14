"""The oldest jobs that have not ended, found without reading the others.

A ledger lists jobs newest first, in pages. The first one is found by halving, once; afterwards a
look begins where the last one did. What it costs depends on how many are asked for.
"""

from __future__ import annotations

from intermission.model import JobRow, JobState
from intermission.ports.ledger import Ledger

ACTIVE = frozenset({JobState.PENDING, JobState.RUNNING, JobState.DRAINING})


class OldestJobs:
    """Remembers where the oldest was. Used by one thread."""

    def __init__(self) -> None:
        self._first = 1

    def look(self, ledger: Ledger, many: int) -> list[JobRow]:
        """At most so many, oldest first."""
        newest = ledger.jobs(states=ACTIVE, limit=1)
        if not newest:
            return []
        last = newest[0].id
        self._first = self._find(ledger, last)
        reach = many
        while True:  # jobs that ended leave gaps in the numbers
            page = ledger.jobs(states=ACTIVE, before=self._first + reach, limit=many + 1)
            if len(page) > many:
                return self._halved(ledger, reach // 2, reach, many)
            if len(page) == many or self._first + reach > last:
                return page[::-1]
            reach *= 2

    def _find(self, ledger: Ledger, last: int) -> int:
        """The number of the oldest."""
        low, high = 1, last
        if not ledger.jobs(states=ACTIVE, before=self._first, limit=1):
            low = min(self._first, last)
        else:
            high = self._first - 1
        while low < high:
            middle = (low + high) // 2
            if ledger.jobs(states=ACTIVE, before=middle + 1, limit=1):
                high = middle
            else:
                low = middle + 1
        return low

    def _halved(self, ledger: Ledger, low: int, high: int, many: int) -> list[JobRow]:
        """The jobs within the longest reach that holds no more than these."""
        found: list[JobRow] = []
        while low < high:
            middle = (low + high) // 2
            page = ledger.jobs(states=ACTIVE, before=self._first + middle, limit=many + 1)
            if len(page) > many:
                high = middle
            else:
                found, low = page, middle + 1
        return found[::-1]
