"""Which alerts follow from which events, and from how things stand.

Pure: no I/O, no clock. The same events in the same order give the same alerts with the same ids,
whenever they are read; what must be remembered between two events is `state()`, which is bounded
and goes into the cursor of whoever delivers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from intermission.model import Event, Reason, TaskState, canonical, identity
from intermission.ports.ledger import STUCK_HOSTS

KINDS = (
    "task.recovered",
    "task.exhausted",
    "task.stuck",
    "failures.pattern",
    "worker.offline",
    "worker.online",
    "queue.old",
    "disk.low",
)

COOLDOWN_MS = 300_000
PATTERN_COUNT = 5
PATTERN_MS = 600_000
MESSAGE_MAX = 1000
_REMEMBERED_MAX = 1000
"""Subjects, and patterns. Of more, the latest are remembered: an alert of another may come sooner
than its cooldown, and none is lost."""

_REFUSALS = frozenset(
    {
        *(Reason.NO_PIPELINE, Reason.OTHER_VERSION, Reason.MISSING_PACKAGE, Reason.NO_DEVICE),
        *(Reason.SCRATCH_FULL, Reason.SCRATCH_FAILED, Reason.HOST_FAULT),
        *(Reason.SOURCE_UNREACHABLE, Reason.STORE_UNREACHABLE),
    }
)
_FAILED = frozenset({TaskState.RETRYING, TaskState.FAILED})

Subject = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Situation:
    """Something a person may have to know of."""

    kind: str
    key: str
    """What it is about: of two with the same one within a cooldown, one is told. Two servers may
    share a receiver, so it is the same at every look and nowhere else."""
    subject: Subject
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Alert:
    """A situation that a person is told of. Of two with the same id one is a repeat."""

    id: str
    kind: str
    at_ms: int
    subject: Subject
    message: str
    remedy: str
    held_back: int = 0
    """How many like it were not told since the last one that was."""


class Alerts:
    """Derives alerts of the wanted kinds. Hand it every event once, in order."""

    def __init__(self, kinds: Collection[str], state: str = '{"told": [], "failures": []}') -> None:
        """With the `state()` of another, it goes on as that one would have."""
        known: Any = json.loads(state)
        self._kinds = frozenset(kinds)
        self._told: dict[str, tuple[int, int]] = {
            key: (at, held) for key, at, held in known["told"]
        }
        """When each was last told, and how many were held back since."""
        self._failures: dict[str, list[int]] = dict(known["failures"])
        """By pattern: when its latest failures were, as many as make an alert."""

    def state(self) -> str:
        """What there is to remember, as JSON, in its order: at most some 200 KB."""
        told = [[key, *one] for key, one in self._told.items()]
        return canonical({"told": told, "failures": list(self._failures.items())})

    def after(self, event: Event, pipeline: str, refusals: int = 0) -> list[Alert]:
        """The alerts that follow from an event of a job of this pipeline.

        `refusals` is how many hosts have given its task back.
        """
        if not concerns(event):
            return []
        # The time as well: another ledger has an event of the same number.
        occasion = event.job_key, str(event.seq), str(event.at_ms)
        found = self._situations(event, pipeline, refusals)
        return [alert for one in found for alert in self._admitted(one, event.at_ms, *occasion)]

    def about(self, situations: Iterable[Situation], now_ms: int) -> list[Alert]:
        """The alerts for how things stand. A situation that lasts is told once per cooldown."""
        # Equal within one cooldown, so that a server which starts again repeats itself.
        bucket = str(now_ms // COOLDOWN_MS)
        return [a for one in situations for a in self._admitted(one, now_ms, one.key, bucket)]

    def _admitted(self, one: Situation, at_ms: int, *occasion: str) -> Iterator[Alert]:
        """The alert, unless nobody wants it or one like it was told just now."""
        if one.kind not in self._kinds:
            return
        name = identity(one.kind, one.key)
        told_ms, held_back = self._told.get(name, (None, 0))
        if told_ms is not None and abs(at_ms - told_ms) < COOLDOWN_MS:  # clocks may be set back
            self._told[name] = told_ms, held_back + 1
            return
        _remember(self._told, name, (at_ms, 0))
        id = f"alert_{identity(one.kind, *occasion)}"
        message = one.message[:MESSAGE_MAX]
        yield Alert(id, one.kind, at_ms, one.subject, message, one.remedy, held_back)

    def _situations(self, event: Event, pipeline: str, refusals: int) -> Iterator[Situation]:
        job, task = event.job_key[:10], f"{event.task} of {pipeline}"
        subject: dict[str, Any] = {"pipeline": pipeline, "job": event.job_key}
        told = {**subject, "task": event.task, "seq": event.seq}
        if event.worker is not None:
            told["worker"] = event.worker
        if is_refusal(event) and refusals >= STUCK_HOSTS:
            yield Situation(
                "task.stuck",
                event.job_key,
                {**told, "hosts": refusals},
                f"no worker can run {task}; {refusals} hosts gave it back, the last because: "
                f"{event.message}",
                "Put one of them right, or start a worker that can: the task waits, and no "
                f"attempt is used up. intermission why {job} '{event.task}'",
            )
        if is_recovery(event):
            yield Situation(
                "task.recovered",
                event.job_key,
                told,
                f"{task} runs again: {event.message}.",
                f"intermission inspect {job} '{event.task}'",
            )
        if event.now == TaskState.FAILED:
            yield Situation(
                "task.exhausted",
                event.job_key,
                told,
                f"{task} failed for good: {event.message}",
                f"intermission logs {job} '{event.task}', and once it is put right: "
                f"intermission retry {job}",
            )
        step, code = event.step or "", event.code or Reason.FAILED
        pattern = identity(pipeline, step, code)
        if event.now in _FAILED and self._is_frequent(pattern, event.at_ms):
            yield Situation(
                "failures.pattern",
                pattern,
                {**subject, "step": step, "code": code},
                f"{step} of {pipeline} failed {PATTERN_COUNT} times within "
                f"{PATTERN_MS // 60_000} minutes with the code {code}, the last because: "
                f"{event.message}",
                f"intermission failures --pipeline {pipeline} --step {step}",
            )

    def _is_frequent(self, pattern: str, at_ms: int) -> bool:
        times = [*self._failures.get(pattern, []), at_ms][-PATTERN_COUNT:]
        _remember(self._failures, pattern, times)
        return len(times) == PATTERN_COUNT and max(times) - min(times) <= PATTERN_MS


def concerns(event: Event) -> bool:
    """Whether an alert could follow from an event: only then its pipeline has to be known."""
    return event.task is not None and (
        event.now in _FAILED or is_recovery(event) or is_refusal(event)
    )


def is_recovery(event: Event) -> bool:
    """Whether a lease ended because its worker vanished: a drain has another code."""
    return event.now == TaskState.ABANDONED and event.code == Reason.LOST


def is_refusal(event: Event) -> bool:
    """Whether a host gave a task back because it cannot run it."""
    return event.now == TaskState.ABANDONED and event.code in _REFUSALS


def _remember(known: dict[str, Any], key: str, value: Any) -> None:
    """As the latest: a dict is in the order it was written."""
    known.pop(key, None)
    known[key] = value
    while len(known) > _REMEMBERED_MAX:
        del known[next(iter(known))]
