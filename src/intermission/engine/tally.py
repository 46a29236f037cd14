"""What this worker did for a job: counts and durations per step, for display and prediction."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_WEIGHT = 0.2
"""How much the newest duration counts in the moving mean."""


@dataclass
class Tally:
    """Work of this run alone; what was finished before is in the ledger's counts."""

    executed: Counter[str] = field(default_factory=Counter[str])
    adopted: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])
    last_failure: str = ""
    warnings: list[str] = field(default_factory=list[str])
    """What its tasks warned of in this run, as `step: text`."""
    recent_s: float | None = None
    """How long tasks take of late, of whichever step: what is claimed next is likely like them."""
    _means_s: dict[str, float] = field(default_factory=dict[str, float])

    def finished(self, step: str, took_s: float, adopted: bool) -> None:
        if adopted:
            self.adopted[step] += 1
            return
        self.executed[step] += 1
        mean_s = self._means_s.get(step, took_s)
        self._means_s[step] = mean_s + _WEIGHT * (took_s - mean_s)
        if self.recent_s is None:
            self.recent_s = took_s
        self.recent_s += _WEIGHT * (took_s - self.recent_s)

    def failed(self, step: str, message: str) -> None:
        self.failures[step] += 1
        self.last_failure = f"{step}: {message}"

    def mean_s(self, step: str) -> float | None:
        """How long a task of this step takes, from the ones this worker ran."""
        return self._means_s.get(step)
