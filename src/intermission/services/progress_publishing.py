"""Progress of workers behind a server, published to Redis where `redis_url` is set.

A worker that reaches the ledger publishes what it does by itself. One that reaches nothing but its
server can't, so the server tells what the event log says of it. What is told may be lost, and
nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from intermission.backends.progress_pubsub import RedisProgress
from intermission.composition.fleet import Fleet
from intermission.model import Event
from intermission.ports.ledger import Ledger
from intermission.services.event_log_reader import EventLogReader
from intermission.services.supervisor import Service, Supervision

EVERY_S = 0.5
JOBS_MAX = 10_000
"""Of how many jobs it is remembered that remote workers work on them."""


class RemoteProgress:
    """Picks what is published from the pages of the event log."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._jobs: dict[str, None] = {}

    def heard(self, _: Ledger, events: Sequence[Event]) -> None:
        """Pass on the events of remote workers' tasks, and those of their jobs."""
        for event in events:
            if _is_remote(event):
                self._jobs[event.job_key] = None
        for event in events:
            if _is_remote(event) or (event.task_id is None and event.job_key in self._jobs):
                self._tell(event)
        while len(self._jobs) > JOBS_MAX:
            del self._jobs[next(iter(self._jobs))]


def _is_remote(event: Event) -> bool:
    """Whether a worker did it that has a key: its processes are named after its id."""
    return "/" in (event.worker or "")


def progress_services(
    fleet: Fleet, describe: Callable[[Event], str], opened: ExitStack
) -> list[Service]:
    """The service that publishes, if the settings say where. `describe` makes the messages."""
    if fleet.settings.redis_url is None:
        return []
    redis = opened.enter_context(closing(RedisProgress(fleet.settings.redis_url, describe)))

    def make(stop: Supervision) -> Callable[[], None]:
        listener = RemoteProgress(redis.tell).heard
        how = {"every_s": EVERY_S, "from_start": False}
        return EventLogReader(fleet.open_ledger, listener, stop=stop, **how).run

    return [Service("progress to Redis", make, is_essential=False)]
