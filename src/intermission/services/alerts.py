"""Which alerts follow from which events, and from how things stand.

Pure: no I/O, no clock. The same events in the same order give the same alerts with the same ids,
whenever they are read; what must be remembered between two events is `state()`, which is bounded
and goes into the cursor of whoever delivers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True, slots=True)
class Alert:
    """Something a person should know of. Of two with the same id one is a repeat."""

    id: str
    kind: str
    at_ms: int
    subject: Mapping[str, str | int]
    message: str
    remedy: str
    held_back: int = 0
    """How many like it were not told since the last one that was."""


@dataclass(frozen=True, slots=True)
class Situation:
    """How something stands now: no event tells it, somebody has to look."""

    kind: str
    key: str
    """What it is about, the same at every look and nowhere else: two servers may share a
    receiver."""
    subject: Mapping[str, str | int]
    message: str
    remedy: str


@dataclass(slots=True)
class _Told:
    at_ms: int
    held_back: int = 0


@dataclass
class Alerts:
    """Derives alerts of the wanted kinds. Hand it every event once, in order."""

    kinds: Collection[str]
    _told: dict[str, _Told] = field(default_factory=dict[str, _Told])
    _failures: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """By pattern: when its latest failures were, as many as make an alert."""

    def concerns(self, event: Event) -> bool:
        """Whether an alert could follow from an event: only then its pipeline has to be known."""
        return event.task is not None and (
            event.now in _FAILED or is_recovery(event) or is_refusal(event)
        )

    def after(self, event: Event, pipeline: str, refusals: int = 0) -> list[Alert]:
        """The alerts that follow from an event of a job of this pipeline.

        `refusals` is how many hosts have given its task back.
        """
        if not self.concerns(event):
            return []
        found = [self._admitted(*one) for one in self._candidates(event, pipeline, refusals)]
        return [alert for alert in found if alert is not None]

    def about(self, situations: Iterable[Situation], now_ms: int) -> list[Alert]:
        """The alerts for how things stand. A situation that lasts is told once per cooldown."""
        # Equal within one cooldown, so that a server which starts again repeats itself.
        bucket = str(now_ms // COOLDOWN_MS)
        found: list[Alert | None] = []
        for one in situations:
            if one.kind in self.kinds:
                id = f"alert_{identity(one.kind, one.key, bucket)}"
                alert = Alert(id, one.kind, now_ms, one.subject, one.message, one.remedy)
                found.append(self._admitted(alert, one.key))
        return [alert for alert in found if alert is not None]

    def state(self) -> str:
        """What there is to remember, as JSON, in its order: at most some 200 KB."""
        told = [[key, one.at_ms, one.held_back] for key, one in self._told.items()]
        return canonical({"told": told, "failures": list(self._failures.items())})

    @classmethod
    def remembering(cls, kinds: Collection[str], state: str) -> Alerts:
        """As it was when `state()` was taken."""
        data: Any = json.loads(state)
        told = {key: _Told(at_ms, held_back) for key, at_ms, held_back in data["told"]}
        return cls(kinds, told, dict(data["failures"]))

    def _candidates(
        self, event: Event, pipeline: str, refusals: int
    ) -> Iterator[tuple[Alert, str]]:
        """Alerts before any cooldown, with what each is about."""
        if is_refusal(event) and refusals >= STUCK_HOSTS and "task.stuck" in self.kinds:
            yield _stuck(event, pipeline, refusals), event.job_key
        if is_recovery(event) and "task.recovered" in self.kinds:
            yield _recovered(event, pipeline), event.job_key
        if event.now == TaskState.FAILED and "task.exhausted" in self.kinds:
            yield _exhausted(event, pipeline), event.job_key
        if event.now in _FAILED and "failures.pattern" in self.kinds:
            code = event.code or Reason.FAILED
            key = identity(pipeline, event.step or "", code)
            if self._is_frequent(key, event.at_ms):
                yield _pattern(event, pipeline, code), key

    def _is_frequent(self, key: str, at_ms: int) -> bool:
        times = [*self._failures.pop(key, []), at_ms][-PATTERN_COUNT:]
        self._failures[key] = times
        _keep_latest(self._failures)
        return len(times) == PATTERN_COUNT and max(times) - min(times) <= PATTERN_MS

    def _admitted(self, alert: Alert, key: str) -> Alert | None:
        """The alert, unless one like it was told just now. Clocks may have been set back since."""
        name = identity(alert.kind, key)
        before = self._told.get(name)
        if before is not None and abs(alert.at_ms - before.at_ms) < COOLDOWN_MS:
            before.held_back += 1
            return None
        self._told.pop(name, None)
        self._told[name] = _Told(alert.at_ms)
        _keep_latest(self._told)
        return alert if before is None else replace(alert, held_back=before.held_back)


def is_recovery(event: Event) -> bool:
    """Whether a lease ended because its worker vanished: a drain has another code."""
    return event.now == TaskState.ABANDONED and event.code == Reason.LOST


def is_refusal(event: Event) -> bool:
    """Whether a host gave a task back because it cannot run it."""
    return event.now == TaskState.ABANDONED and event.code in _REFUSALS


def _keep_latest(known: dict[str, Any]) -> None:
    """A dict is in the order it was written."""
    while len(known) > _REMEMBERED_MAX:
        del known[next(iter(known))]


def _alert(kind: str, event: Event, subject: dict[str, Any], message: str, remedy: str) -> Alert:
    # The time as well: another ledger has an event of the same number.
    id = identity(kind, event.job_key, str(event.seq), str(event.at_ms))
    given = {name: value for name, value in subject.items() if value is not None}
    return Alert(f"alert_{id}", kind, event.at_ms, given, message[:MESSAGE_MAX], remedy)


def _subject(event: Event, pipeline: str) -> dict[str, Any]:
    return {
        "job": event.job_key,
        "pipeline": pipeline,
        "task": event.task,
        "worker": event.worker,
        "seq": event.seq,
    }


def _recovered(event: Event, pipeline: str) -> Alert:
    return _alert(
        "task.recovered",
        event,
        _subject(event, pipeline),
        f"{event.task} of {pipeline} runs again: {event.message}.",
        f"intermission inspect {event.job_key[:10]} '{event.task}'",
    )


def _exhausted(event: Event, pipeline: str) -> Alert:
    job = event.job_key[:10]
    return _alert(
        "task.exhausted",
        event,
        _subject(event, pipeline),
        f"{event.task} of {pipeline} failed for good: {event.message}",
        f"intermission logs {job} '{event.task}', and once it is put right: "
        f"intermission retry {job}",
    )


def _stuck(event: Event, pipeline: str, refusals: int) -> Alert:
    return _alert(
        "task.stuck",
        event,
        {**_subject(event, pipeline), "hosts": refusals},
        f"no worker can run {event.task} of {pipeline}; {refusals} hosts gave it back, the last "
        f"because: {event.message}",
        "Put one of them right, or start a worker that can: the task waits, and no attempt is "
        f"used up. intermission why {event.job_key[:10]} '{event.task}'",
    )


def _pattern(event: Event, pipeline: str, code: str) -> Alert:
    step = event.step or ""
    return _alert(
        "failures.pattern",
        event,
        {"pipeline": pipeline, "step": step, "code": code, "job": event.job_key},
        f"{step} of {pipeline} failed {PATTERN_COUNT} times within "
        f"{PATTERN_MS // 60_000} minutes with the code {code}, the last because: {event.message}",
        f"intermission failures --pipeline {pipeline} --step {step}",
    )
