"""Watching places: when to look at each, and what to tell of what was found.

Each place has a service, which looks at it when its time has come; the supervisor tells that a
place is away, and tries again. What a look finds is submitted, and submitting twice joins the job
that is there, so any number of processes may watch the same places without knowing of each other.
Nothing is kept: a look sees all that is there, not what came since the last one. Where a queue
tells of what came, another service receives its messages, and looks are rarer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from intermission.backends.events.sqs import SqsQueue
from intermission.composition.fleet import Fleet
from intermission.composition.locations import Location
from intermission.errors import EnvironmentFault, IntermissionError, UsageError, fault_from_os
from intermission.ports.clock import Clock
from intermission.services.cron import Cron, zone_of
from intermission.services.folder_watch import FolderWatch, Tell
from intermission.services.queue_watch import queue_of, queue_service
from intermission.services.supervisor import Service, Supervision
from intermission.settings.watch_rules import WatchedPlace

EVERY_S = 10.0
BESIDE_QUEUE_S = 300.0
"""Between two looks at a place that a queue tells of: they find what the queue lost."""
SETTLE_S = 5.0
"""Between the two looks at a folder that its cron expression calls for."""
LATE_MS = 3600 * 1000
"""How late a look may be: what is due for longer is left to the next time."""
AWAY_S = 5.0
"""The longest time between two looks at a place that is away."""
NAP_S = 30.0
"""The longest wait at a time: the clock on the wall may be set meanwhile."""

log = logging.getLogger(__name__)


class Timing(Protocol):
    """When a place is looked at."""

    settle_s: float
    """If not 0: looked at again after so long, where only that tells what is complete."""

    def wait_s(self) -> float:
        """Seconds until the next look; 0 or less when it is due."""
        ...

    def looked(self, began_ms: int) -> None: ...


class Every:
    """Again and again, beginning at once."""

    settle_s = 0.0

    def __init__(self, every_s: float, clock: Clock) -> None:
        self._every_s = every_s
        self._clock = clock
        self._next_s = clock.monotonic_s()

    def wait_s(self) -> float:
        return self._next_s - self._clock.monotonic_s()

    def looked(self, began_ms: int) -> None:
        self._next_s = self._clock.monotonic_s() + self._every_s


class AtTimes:
    """At the times of a cron expression, or up to an hour late.

    Late is a process that starts just after the time, a machine that slept through it, and a
    ledger that was away. What is later than that waits for the next time: nothing is lost by it,
    for the files are still there then, and whoever gave hours gets no work outside them.
    """

    settle_s = SETTLE_S

    def __init__(self, cron: Cron, clock: Clock) -> None:
        self._cron = cron
        self._clock = clock
        self._through_ms = 0
        """No time up to here is due any more."""

    def wait_s(self) -> float:
        now_ms = self._clock.now_ms()
        # A clock that was set back must not silence the watch until it has caught up.
        self._through_ms = min(self._through_ms, now_ms)
        after_ms = max(self._through_ms, now_ms - LATE_MS)
        return (self._cron.after(after_ms) - now_ms) / 1000

    def looked(self, began_ms: int) -> None:
        self._through_ms = began_ms


def timing_of(wanted: WatchedPlace, clock: Clock) -> Timing:
    """When to look. Raises `UsageError` for what cannot be meant."""
    if wanted.cron is not None and wanted.queue is not None:
        raise UsageError(
            "both a queue, which tells at any time, and a cron expression are given.",
            remedy="Give one of them; every_s says how often to look beside a queue.",
        )
    if wanted.cron is not None and wanted.every_s is not None:
        raise UsageError(
            "both a time between looks and a cron expression are given.", remedy="Give one of them."
        )
    if wanted.cron is None and wanted.timezone is not None:
        raise UsageError(
            "a time zone is given, and no cron expression.", remedy="Add one, such as '0 2 * * *'."
        )
    if wanted.cron is not None:
        return AtTimes(Cron(wanted.cron, zone_of(wanted.timezone)), clock)
    usual_s = EVERY_S if wanted.queue is None else BESIDE_QUEUE_S
    return Every(usual_s if wanted.every_s is None else wanted.every_s, clock)


@dataclass
class Watch:
    """A place, and when it is looked at."""

    folder: FolderWatch
    timing: Timing
    queue: SqsQueue | None = None
    """Tells of what came."""

    def run(self, stop: Supervision, tell: Tell) -> None:
        """Look whenever it is time, until stopped. Raises when the place or the ledger is away."""
        while not stop.is_set():
            if (wait_s := self.timing.wait_s()) > 0:
                stop.wait(min(wait_s, NAP_S))
                continue
            began_ms = self.folder.clock.now_ms()
            self._look(stop, tell)
            settle_s = self.timing.settle_s
            if settle_s and self.folder.is_unsettled and not stop.wait(settle_s):
                self._look(stop, tell)
            self.timing.looked(began_ms)
            stop.succeeded()

    def _look(self, stop: Supervision, tell: Tell) -> None:
        try:
            for outcome in self.folder.look(stop.is_set):
                tell(*outcome)
        except OSError as e:
            raise fault_from_os(e, "looking", EnvironmentFault, where=self.folder.place) from e


def watch_of(fleet: Fleet, wanted: WatchedPlace) -> Watch:
    """The watch of a place. Raises `UsageError` for what cannot be meant."""
    folder = FolderWatch(fleet, wanted)
    queue = None if wanted.queue is None else queue_of(wanted.queue, folder.place)
    return Watch(folder, timing_of(wanted, folder.clock), queue)


def watches_of(fleet: Fleet) -> list[Watch]:
    """What the settings ask for. Raises `UsageError` that says which of them cannot work."""
    found: list[Watch] = []
    for number, wanted in enumerate(fleet.settings.watches, start=1):
        try:
            found.append(watch_of(fleet, wanted))
        except UsageError as e:
            raise UsageError(f"watches, number {number}: {e.message}", remedy=e.remedy) from e
    return found


def watch_services(watches: Sequence[Watch], tell: Tell) -> list[Service]:
    """A service for each place, and one for each queue that tells of some of them.

    A place that is away does not make a server less ready: what comes there is found later.
    """
    found: dict[str, Service] = {}
    told: dict[str, tuple[SqsQueue, list[FolderWatch]]] = {}
    for number, watch in enumerate(watches, start=1):
        name = f"watch of {watch.folder.place}"
        if name in found:  # for another pipeline; metrics have one line for a name
            name = f"{name} (number {number})"
        run = partial(watch.run, tell=tell)
        found[name] = Service(name, run, is_essential=False, pause_max_s=AWAY_S)
        if watch.queue is not None:
            told.setdefault(watch.queue.url, (watch.queue, []))[1].append(watch.folder)
    queues = [queue_service(queue, folders, tell) for queue, folders in told.values()]
    return [*found.values(), *queues]


def server_watches(fleet: Fleet) -> list[Service]:
    """What the settings name. Raises `UsageError` for a watch that cannot work."""
    return watch_services(watches_of(fleet), _log_outcome)


def _log_outcome(place: Location, became: str | IntermissionError) -> None:
    if isinstance(became, IntermissionError):
        log.warning("%s is not submitted, and is tried again: %s", place, became)
    else:
        log.info("%s: submitted as job %s", place, became)
