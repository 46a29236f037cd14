"""How much more may be claimed under each limit, within one transaction."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection
from typing import Any

from intermission.backends.ledger.sqlite.queries import SQL
from intermission.model import Job, Limit, StepSpec


class LimitBudget:
    """The limits as they are now. What is admitted takes its part of every one it is under."""

    def __init__(self, db: Any, now_ms: int) -> None:
        self._db = db
        self._now_ms = now_ms
        rows = db.execute("SELECT name, running, per_minute, paused, tokens, filled_ms FROM limits")
        self._limits = {
            name: (Limit(name, running, per_minute, bool(paused)), tokens, filled_ms)
            for name, running, per_minute, paused, tokens, filled_ms in rows
        }
        self._left: dict[str, int] = {}
        self._admitted: Counter[str] = Counter()
        self._held: dict[tuple[str, str], int] = {}
        """Of the steps that have a bound of their own, by pipeline and name."""

    def __bool__(self) -> bool:
        return bool(self._limits)

    def admit(self, names: Collection[str]) -> bool:
        """Whether one more may be claimed under all of these."""
        under = [name for name in names if name in self._limits]
        if any(self._room(name) <= 0 for name in under):
            return False
        for name in under:
            self._left[name] -= 1
            self._admitted[name] += 1
        return True

    def has_room(self, names: Collection[str]) -> bool:
        """Whether anything may be claimed under all of these."""
        return all(self._room(name) > 0 for name in names if name in self._limits)

    def of_step(self, job: Job, spec: StepSpec) -> int:
        """How many more tasks of a step its own bound allows."""
        if spec.concurrency is None:
            return sys.maxsize
        place = job.pipeline, spec.name
        if place not in self._held:
            values = {"pipeline": job.pipeline, "name": spec.name}
            ((self._held[place],),) = self._db.execute(SQL["held_of_step"], values).fetchall()
        return max(0, spec.concurrency - self._held[place])

    def held(self, job: Job, spec: StepSpec) -> None:
        """One more task of a step is held."""
        if (job.pipeline, spec.name) in self._held:
            self._held[job.pipeline, spec.name] += 1

    def settle(self) -> None:
        """Write down what was taken of the rates."""
        for name, count in self._admitted.items():
            limit, tokens, filled_ms = self._limits[name]
            if limit.per_minute is not None:
                left = self._tokens(limit, tokens, filled_ms) - count
                sql = "UPDATE limits SET tokens = ?, filled_ms = ? WHERE name = ?"
                self._db.execute(sql, (left, self._now_ms, name))

    def _room(self, name: str) -> int:
        if name not in self._left:
            limit, tokens, filled_ms = self._limits[name]
            rooms = [0] if limit.paused else []
            if limit.running is not None:
                kind, _, what = name.partition(":")
                ((held,),) = self._db.execute(SQL[f"held_under_{kind}"], (what,)).fetchall()
                rooms.append(limit.running - held)
            if limit.per_minute is not None:
                rooms.append(int(self._tokens(limit, tokens, filled_ms)))
            self._left[name] = min(rooms)
        return self._left[name]

    def _tokens(self, limit: Limit, tokens: float, filled_ms: int) -> float:
        """What has trickled in since, up to the burst. A clock that was set back gives nothing."""
        minutes = max(0, self._now_ms - filled_ms) / 60_000
        return min(limit.burst, tokens + minutes * (limit.per_minute or 0.0))
