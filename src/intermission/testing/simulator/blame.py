"""Whose fault an end was: attempts are counted for the tasks' own ends, and leases are used.

The book knows which ends are a task's own, because the simulation caused them. Whatever else the
ledger is told to count is a violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from intermission.model import Failure, Heartbeat, Job, Lease
from intermission.ports.clock import Clock
from intermission.testing.simulator.sample_pipeline import NEVER

UNUSED_MAX_S = 300.0
"""How long a lease may be renewed before its task starts; no fault holds a slot up for longer."""

_Attempt = tuple[int, int, str | None]


class Blame:
    """The book of one simulation's attempts, by task, fence and key."""

    def __init__(self, clock: Clock, jobs: Iterable[Job]) -> None:
        self._clock = clock
        self._jobs = {job.key: job for job in jobs}
        self._own: set[_Attempt] = set()
        self._handed_s: dict[_Attempt, float] = {}
        """When a slot was given it."""
        self._begun: set[_Attempt] = set()
        self._leases: dict[tuple[Any, int, int], tuple[Lease, float]] = {}
        """By ledger, task and fence, when it was claimed."""
        self._elsewhere: dict[_Attempt, tuple[Lease, float]] = {}
        """The same by key, for those who claimed from a ledger that another took the place of."""
        self._failures: Counter[tuple[str, str, int]] = Counter()
        """By job, step and index."""

    def handed(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self._handed_s.setdefault(_attempt(lease), self._clock.monotonic_s())

    def begun(self, lease: Lease) -> None:
        """A slot is at work on it."""
        self._begun.add(_attempt(lease))

    def is_their_own(self, leases: Iterable[Lease]) -> None:
        """From here on, these may fail: the simulation has them fail."""
        self._own.update(_attempt(lease) for lease in leases)

    def claimed(self, place: Any, leases: Sequence[Lease]) -> str | None:
        """What is wrong with leases that a ledger hands out."""
        for lease in leases:
            if (place, lease.task_id, lease.fence) in self._leases:
                return f"{lease} was handed out twice"
            now_s = self._clock.monotonic_s()
            self._leases[place, lease.task_id, lease.fence] = lease, now_s
            self._elsewhere[_attempt(lease)] = lease, now_s
            ends = self._failures[lease.job_key, lease.step, lease.index]
            if lease.attempt > 1 + ends:
                return f"{lease} is not the first attempt, and {ends} ends were its own"
        return None

    def failed(self, place: Any, failures: Sequence[Failure]) -> str | None:
        """What is wrong with failures that a ledger is told."""
        for one in failures:
            known = self._leases.get((place, one.task_id, one.fence))
            if known is None or one.key not in (None, known[0].key):
                known = self._elsewhere.get((one.task_id, one.fence, one.key))
            if known is None:
                continue
            lease, _ = known
            self._failures[lease.job_key, lease.step, lease.index] += 1
            if not self._is_own(lease, one):
                return f"{lease.step}[{lease.index}] failed by no fault of its own: {one}"
        return None

    def _is_own(self, lease: Lease, failure: Failure) -> bool:
        attempt = _attempt(lease)
        if failure.error == "TimedOut":
            timeout_s = self._jobs[lease.job_key].step(lease.step).timeout_s
            ran_s = self._clock.monotonic_s() - self._handed_s.get(attempt, 0.0)
            return timeout_s is not None and attempt in self._handed_s and ran_s >= timeout_s
        return attempt in self._own or NEVER in failure.message

    def renewed(self, place: Any, heartbeats: Iterable[Heartbeat]) -> str | None:
        """What is wrong with leases that somebody keeps."""
        for one in heartbeats:
            known = self._leases.get((place, one.task_id, one.fence))
            if known is None or _attempt(known[0]) in self._begun:
                continue
            lease, claimed_s = known
            kept_s = self._clock.monotonic_s() - claimed_s
            if kept_s > UNUSED_MAX_S:
                return f"{lease} is renewed after {kept_s:.0f} s, and no slot has begun it"
        return None


def _attempt(lease: Lease) -> _Attempt:
    return lease.task_id, lease.fence, lease.key
