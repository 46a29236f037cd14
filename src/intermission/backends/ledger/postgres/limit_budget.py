"""How much more may be claimed under each limit, within one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from intermission.backends.ledger.postgres.transactions import Row
from intermission.model import Job, Limit, StepSpec

_NO_LIMIT = 2**31 - 1


class LimitBudget:
    """The limits over some steps, locked. What is admitted takes its part of every one.

    A step's own bound is one more limit, which the ledger keeps with its job. Whatever is under
    a limit is claimed by one transaction at a time, so that two never count the same room.
    """

    def __init__(
        self, rows: Callable[..., list[Row]], now_ms: int, under: Iterable[tuple[Job, StepSpec]]
    ) -> None:
        self._rows = rows
        self._now_ms = now_ms
        self._limits: dict[str, tuple[Limit, float, int]] = {}
        self._left: dict[str, int] = {}
        self._admitted: Counter[str] = Counter()
        steps = list(under)
        bounds = {bound for job, spec in steps if (bound := _bound(job, spec))}
        if bounds:
            rows("lock_steps", names=list(bounds))
        names = {name for job, spec in steps for name in Limit.names(job, spec)}
        for name, running, per_minute, paused, tokens, filled_ms in rows(
            "lock_limits", names=list(names)
        ):
            self._limits[name] = Limit(name, running, per_minute, paused), tokens, filled_ms

    def bind(self, job: Job, spec: StepSpec) -> bool:
        """Whether any limit is over a step."""
        return spec.concurrency is not None or any(map(self._limits.get, Limit.names(job, spec)))

    def of_step(self, job: Job, spec: StepSpec) -> int:
        """How many more tasks of a step all its limits allow, others left aside."""
        names = (name for name in Limit.names(job, spec) if name in self._limits)
        return max(0, min([self._of_bound(job, spec), *map(self._room, names)]))

    def admit(self, job: Job, spec: StepSpec) -> bool:
        """Whether one more may be claimed; if so, it is counted."""
        if self.of_step(job, spec) <= 0:
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
                self._rows("use_rate", name=name, tokens=left)

    def _of_bound(self, job: Job, spec: StepSpec) -> int:
        bound = _bound(job, spec)
        if bound is None or spec.concurrency is None:
            return _NO_LIMIT
        if bound not in self._left:
            held = self._held("step", pipeline=job.pipeline, what=spec.name)
            self._left[bound] = -held  # of which each job's own bound is taken
        return spec.concurrency + self._left[bound]

    def _room(self, name: str) -> int:
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
        ((held,),) = self._rows(f"held_under_{kind}", **values)
        return held

    def _tokens(self, limit: Limit, tokens: float, filled_ms: int) -> float:
        """What has trickled in since, up to the burst. A clock that was set back gives nothing."""
        minutes = max(0, self._now_ms - filled_ms) / 60_000
        return min(limit.burst, tokens + minutes * (limit.per_minute or 0.0))


def _bound(job: Job, spec: StepSpec) -> str | None:
    """A name for what a step's own bound is shared by; it is no limit's name."""
    return None if spec.concurrency is None else f"step:{job.pipeline}\n{spec.name}"
