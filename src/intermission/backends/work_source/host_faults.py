"""What this host could not run lately, and how long it leaves that alone."""

from __future__ import annotations

import logging

BACKOFF_S = (60.0, 300.0, 900.0)
IN_A_ROW = 2
"""So many faults without a success between them are surely the host's, and not one task's."""
EVERYTHING = ""
"""In place of a kind of work: a full disk is in the way of everything."""
log = logging.getLogger(__name__)


class HostFaults:
    """By kind of work, which is a pipeline with its version. Times are monotonic."""

    def __init__(self) -> None:
        self._in_a_row: dict[str, int] = {}
        self._pauses: dict[str, int] = {}
        self._until_s: dict[str, float] = {}

    def happened(self, kind: str, now_s: float) -> float:
        """A task of this kind could not be run here; for how long this host leaves it alone."""
        pauses = self._pauses.get(kind, 0)
        wait_s = BACKOFF_S[min(pauses, len(BACKOFF_S) - 1)]
        self._in_a_row[kind] = self._in_a_row.get(kind, 0) + 1
        if self._in_a_row[kind] >= IN_A_ROW and self._until_s.get(kind, 0.0) <= now_s:
            self._pauses[kind] = pauses + 1
            self._until_s[kind] = now_s + wait_s
            log.warning("%s is left alone for %g s", kind or "everything", wait_s)
        return wait_s

    def went_well(self, kind: str) -> None:
        """A task of this kind was done here."""
        for one in (kind, EVERYTHING):
            for known in (self._in_a_row, self._pauses, self._until_s):
                known.pop(one, None)

    def paused(self, now_s: float) -> set[str]:
        """The kinds that are left alone now."""
        return {kind for kind, until_s in self._until_s.items() if until_s > now_s}
