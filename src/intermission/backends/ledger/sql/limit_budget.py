"""How much more may be claimed under each limit, within one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from intermission.backends.ledger.sql.database import Database
from intermission.model import Job, Limit, StepSpec

_NO_LIMIT = 2**31 - 1


class LimitBudget:
    """The limits over some steps, locked. What is admitted takes its part of every one.

    A step's own bound is one more limit, which the ledger keeps with its job. Whatever is under
    a limit is claimed by one transaction at a time, so that two never count the same room.
    """

    def __init__(self, db: Database, under: Iterable[tuple[Job, StepSpec]]) -> None:
        self._db = db
        self._left: dict[str, int] = {}
        self._admitted: Counter[str] = Counter()
        steps = list(under)
        bounds = {bound for job, spec in steps if (bound := _bound(job, spec))}
        if bounds:
            db.rows("lock_bounds", names=sorted(bounds))
        names = {name for job, spec in steps for name in Limit.names(job, spec)}
        self._limits = {
            name: (Limit(name, running, per_minute, bool(paused)), tokens, filled_ms)
            for name, running, per_minute, paused, tokens, filled_ms in db.rows(
                "lock_limits", names=sorted(names)
            )
        }

    def bind(self, job: Job, spec: StepSpec) -> bool:
        """Whether any limit is over a step."""
        return spec.concurrency is not None or any(map(self._limits.get, Limit.names(job, spec)))

    def room(self, job: Job, spec: StepSpec) -> int:
        """How many more tasks of a step all its limits allow."""
        return max(0, min(self._of_class(job, spec), self._of_limit(f"job:{job.key}")))

    def is_full(self, job: Job, spec: StepSpec) -> bool:
        """Whether nothing more of this class of work may be claimed, of any job."""
        return self._of_class(job, spec) <= 0

    def admit(self, job: Job, spec: StepSpec) -> bool:
        """Whether one more may be claimed; if so, it is counted."""
        if self.room(job, spec) <= 0:
            return False
        names = [name for name in Limit.names(job, spec) if name in self._limits]
        if bound := _bound(job, spec):
            names.append(bound)
        for name in names:
            self._left[name] -= 1
            self._admitted[name] += 1
        return True

    def settle(self) -> None:
        """Write down what was taken of the rates."""
        for name, count in self._admitted.items():
            limit, tokens, filled_ms = self._limits.get(name, (None, 0.0, 0))
            if limit is not None and limit.per_minute is not None:
                left = self._tokens(limit, tokens, filled_ms) - count
                self._db.rows("use_rate", name=name, tokens=left)

    def _of_class(self, job: Job, spec: StepSpec) -> int:
        names = Limit.names(job, spec)
        rooms = [self._of_limit(name) for name in names if not name.startswith("job:")]
        return min([self._of_bound(job, spec), *rooms])

    def _of_bound(self, job: Job, spec: StepSpec) -> int:
        bound = _bound(job, spec)
        if bound is None or spec.concurrency is None:
            return _NO_LIMIT
        if bound not in self._left:
            held = self._held("step", pipeline=job.pipeline, what=spec.name)
            self._left[bound] = -held  # of which each job's own bound is taken
        return spec.concurrency + self._left[bound]

    def _of_limit(self, name: str) -> int:
        if name not in self._limits:
            return _NO_LIMIT
        if name not in self._left:
            limit, tokens, filled_ms = self._limits[name]
            rooms: list[int] = [0] if limit.paused else []
            if limit.running is not None:
                kind, _, what = name.partition(":")
                rooms.append(limit.running - self._held(kind, what=what))
            if limit.per_minute is not None:
                rooms.append(int(self._tokens(limit, tokens, filled_ms)))
            self._left[name] = min(rooms)
        return self._left[name]

    def _held(self, kind: str, **values: Any) -> int:
        ((held,),) = self._db.rows(f"held_under_{kind}", **values)
        return held

    def _tokens(self, limit: Limit, tokens: float, filled_ms: int) -> float:
        """What has trickled in since, up to the burst. A clock that was set back gives nothing."""
        minutes = max(0, self._db.now_ms - filled_ms) / 60_000
        return min(limit.burst, tokens + minutes * (limit.per_minute or 0.0))


def _bound(job: Job, spec: StepSpec) -> str | None:
    """A name for what a step's own bound is shared by; it is no limit's name."""
    return None if spec.concurrency is None else f"step:{job.pipeline}\n{spec.name}"
