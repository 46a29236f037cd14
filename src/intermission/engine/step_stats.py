"""What this worker did for a job: counts and durations per step, for display and prediction."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean

_WEIGHT = 0.2
"""How much the newest duration counts in the moving mean."""


@dataclass
class StepStats:
    """Work of this run alone; what was finished before is in the ledger's counts."""

    executed: Counter[str] = field(default_factory=Counter[str])
    adopted: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])
    last_failure: str = ""
    warnings: list[str] = field(default_factory=list[str])
    """What its tasks warned of in this run, as `step: text`."""
    recent_s: float | None = None
    """How long tasks of chunks take of late, of whichever step: the next are likely like them."""
    _means_s: dict[str, float] = field(default_factory=dict[str, float])

    def finished(
        self, step: str, took_s: list[float], adopted: int = 0, mapped: bool = True
    ) -> None:
        """Tasks of a step ended well: so long each that was executed took, so many were adopted."""
        if adopted:
            self.adopted[step] += adopted
        if took_s:
            self.executed[step] += len(took_s)
            mean_s = fmean(took_s)
            weight = 1 - (1 - _WEIGHT) ** len(took_s)
            self._means_s[step] = _moved(self._means_s.get(step), mean_s, weight)
            if mapped:  # a plan's time, say, tells nothing of the thousands that it found
                self.recent_s = _moved(self.recent_s, mean_s, weight)

    def failed(self, step: str, message: str) -> None:
        self.failures[step] += 1
        self.last_failure = f"{step}: {message}"

    def mean_s(self, step: str) -> float | None:
        """How long a task of this step takes, from the ones this worker ran."""
        return self._means_s.get(step)


def _moved(before_s: float | None, newest_s: float, weight: float) -> float:
    return newest_s if before_s is None else before_s + weight * (newest_s - before_s)
