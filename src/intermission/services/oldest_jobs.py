"""The oldest jobs that have not ended, and what waits there, found without reading the others.

A ledger lists jobs newest first, in pages. The first one is found by halving, once; afterwards a
look begins where the last one did. What it costs depends on how many are asked for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from intermission.model import CLAIMABLE, JobRow, JobState, TaskRow, TaskState
from intermission.ports.ledger import Ledger

ACTIVE = frozenset({JobState.PENDING, JobState.RUNNING, JobState.DRAINING})
READY = CLAIMABLE - {TaskState.RETRYING}
JOBS_MAX = 200
"""How many jobs are looked at for what waits there, the oldest: they have waited longest."""


class OldestJobs:
    """Remembers where the oldest was. Used by one thread."""

    def __init__(self) -> None:
        self._first = 1

    def next_in_line(self, ledger: Ledger) -> Iterator[tuple[JobRow, TaskRow]]:
        """Of each of the oldest jobs that have one, the first task that could be claimed."""
        for row in self.look(ledger, JOBS_MAX):
            if row.total(*READY):
                for task in ledger.tasks(row.job.key, states=READY, limit=1):
                    yield row, task

    def look(self, ledger: Ledger, many: int) -> list[JobRow]:
        """At most so many, oldest first."""

        def active(before: int) -> list[JobRow]:
            return ledger.jobs(states=ACTIVE, before=before, limit=many + 1)

        newest = ledger.jobs(states=ACTIVE, limit=1)
        if not newest:
            return []
        last = newest[0].id
        self._first = self._find(ledger, last)
        reach = many
        page = active(self._first + reach)
        while len(page) < many and self._first + reach <= last:
            reach *= 2  # jobs that ended leave gaps in the numbers
            page = active(self._first + reach)
        if len(page) > many:  # the longest reach that holds no more than these
            nearer = range(self._first + reach // 2, self._first + reach)
            found = bisect_right(nearer, many, key=lambda before: len(active(before)))
            page = active(nearer[found - 1])
        return page[::-1]

    def _find(self, ledger: Ledger, last: int) -> int:
        """The number of the oldest."""

        def is_reached(number: int) -> bool:
            return bool(ledger.jobs(states=ACTIVE, before=number + 1, limit=1))

        if is_reached(self._first - 1):  # an older one is active again
            return 1 + bisect_left(range(1, self._first), True, key=is_reached)
        low = min(self._first, last)
        return low + bisect_left(range(low, last), True, key=is_reached)
