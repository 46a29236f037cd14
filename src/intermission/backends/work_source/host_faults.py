"""What this host could not run lately, and how long it leaves that alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

from intermission.errors import EnvironmentFault, fault_from_os

BACKOFF_S = (60.0, 300.0, 900.0)
IN_A_ROW = 2
"""So many faults without a success between them are surely the host's, and not one task's."""
SELF_TESTS = 3
"""A host that fails so many self-tests in a row is of no use."""
EVERYTHING = ""
"""In place of a kind of work: a full disk is in the way of everything."""
_TEST_BYTES = 1 << 20
log = logging.getLogger(__name__)


class HostFaults:
    """By kind of work, which is a pipeline with its version. Times are monotonic.

    `self_test` says whether this host is fit for any work, by raising `EnvironmentFault` if not.
    """

    def __init__(self, self_test: Callable[[], None] = lambda: None) -> None:
        self._self_test = self_test
        self._failed_tests = 0
        self._in_a_row: dict[str, int] = {}
        self._pauses: dict[str, int] = {}
        self._until_s: dict[str, float] = {}

    def happened(self, kind: str, why: str, now_s: float) -> float:
        """A task of this kind could not be run here; for how long this host leaves it alone."""
        pauses = self._pauses.get(kind, 0)
        wait_s = BACKOFF_S[min(pauses, len(BACKOFF_S) - 1)]
        self._in_a_row[kind] = self._in_a_row.get(kind, 0) + 1
        if self._in_a_row[kind] >= IN_A_ROW and self._until_s.get(kind, 0.0) <= now_s:
            self._pauses[kind] = pauses + 1
            self._until_s[kind] = now_s + wait_s
            log.warning("%s is left alone for %g s: %s", kind or "everything", wait_s, why)
        return wait_s

    def went_well(self, kind: str) -> None:
        """A task of this kind was done here."""
        self._failed_tests = 0
        for one in (kind, EVERYTHING):
            for known in (self._in_a_row, self._pauses, self._until_s):
                known.pop(one, None)

    @property
    def has_pauses(self) -> bool:
        """Whether anything is left alone, or was until a moment ago."""
        return bool(self._until_s)

    def paused(self, now_s: float) -> set[str]:
        """The kinds that are left alone now.

        When everything was, this host is tested before it goes on. Raises `EnvironmentFault`
        when that has failed too often.
        """
        until_s = self._until_s.get(EVERYTHING)
        if until_s is not None and until_s <= now_s:
            del self._until_s[EVERYTHING]
            self._test(now_s)
        return {kind for kind, until_s in self._until_s.items() if until_s > now_s}

    def _test(self, now_s: float) -> None:
        try:
            self._self_test()
            self._failed_tests = 0
        except EnvironmentFault as e:
            self._failed_tests += 1
            if self._failed_tests >= SELF_TESTS:
                raise
            self.happened(EVERYTHING, e.message, now_s)


def check_scratch(folder: Path) -> None:
    """Whether files can be written to this host's own disk and read again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:
            file.write(os.urandom(_TEST_BYTES))
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            file.read()
    except OSError as e:
        raise fault_from_os(e, "testing this host", EnvironmentFault, where=folder) from e
