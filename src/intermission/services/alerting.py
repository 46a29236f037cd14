"""Telling people: a service for each receiver reads the event log and delivers what follows.

Nothing is kept but a cursor in the server's store: up to which event everything was delivered,
and what the rules remember of the events before. After a restart the alerts behind the cursor are
derived again, with the same ids. So none is lost, some may be sent twice, and a receiver can tell.
The ledger is only read.
"""

from __future__ import annotations

import json
import logging
import random
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from intermission.composition.event_log import last_event, timestamp
from intermission.composition.fleet import Fleet
from intermission.composition.locations import is_url
from intermission.composition.registries import open_registry
from intermission.composition.uploads import Uploads
from intermission.errors import IntermissionError, NotFound, UsageError
from intermission.model import CLAIMABLE, Event, canonical, identity
from intermission.ports.clock import Clock
from intermission.ports.ledger import Ledger, task_with
from intermission.ports.store import Store
from intermission.services.alerts import KINDS, Alert, Alerts, Situation, concerns, is_refusal
from intermission.services.health_checks import Queues, WorkerWatch, disk_usage, low_disk
from intermission.services.supervisor import Service, Supervision
from intermission.services.webhook import GONE, Hook, secret_bytes
from intermission.settings import Settings

PAGE = 1000
READ_EVERY_S = 1.0
LOOK_EVERY_S = 60.0
SAVE_EVERY_S = 60.0
"""How often a cursor that only moved past events without alerts is written."""
GIVE_UP_MS = 24 * 3600 * 1000
TRIES_MIN = 5
"""However old an alert is: the server may have been off, and the receiver slow to wake up."""
BACK_OFF_S = (1.0, 5.0, 30.0, 60.0, 300.0)

log = logging.getLogger(__name__)

Look = Callable[[Ledger], Iterable[Situation]]


class _Undelivered(Exception):
    """An alert was not delivered, and it is not its time to be given up."""


class Cursor:
    """Up to which event a receiver has everything, and what the rules remember of them.

    Of two servers over one store, the slower may set it back: then alerts are repeated.
    """

    def __init__(self, store: Store, receiver: str) -> None:
        self._store = store
        self._key = f"alerts/cursor/{receiver}.json"

    def read(self) -> tuple[int, str] | None:
        """None when there is no cursor yet."""
        try:
            found = json.loads(self._store.read(self._key))
        except NotFound:
            return None
        return found["seq"], found["state"]

    def move(self, seq: int, state: str) -> None:
        """Durable when it returns."""
        self._store.replace(self._key, canonical({"seq": seq, "state": state}).encode())


class Follower:
    """Delivers to one receiver, in the order of events, one alert at a time."""

    def __init__(
        self,
        hook: Hook,
        cursor: Cursor,
        open_ledger: Callable[[], Ledger],
        *,
        kinds: Iterable[str],
        clock: Clock,
        looks: Iterable[Look] = (),
    ) -> None:
        self._hook = hook
        self._cursor = cursor
        self._open = open_ledger
        self._kinds = frozenset(kinds)
        self._clock = clock
        self._looks = tuple(looks)
        self._save_at_s = self._look_at_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Find where to go on; the first time, behind everything that has happened before."""
        with closing(self._open()) as ledger:
            last = last_event(ledger)
        found = self._cursor.read()
        if found is not None and found[0] > last:
            log.warning("the event log ends before what was last sent: pruned, or another ledger")
            found = None
        if found is None:
            self._seq, self._alerts = last, Alerts(self._kinds)
            self._cursor.move(last, self._alerts.state())
        else:
            self._seq, self._alerts = found[0], Alerts(self._kinds, found[1])
        self._saved_seq = self._seq

    def run(self, stop: Supervision) -> None:
        """Follow the log from the cursor on, until it is stopped or the receiver is gone."""
        self.begin()  # what an error left half done is derived again
        try:
            with closing(self._open()) as ledger:
                while not stop.is_set():
                    self.step(ledger, stop)
                    stop.succeeded()
                    stop.wait(READ_EVERY_S)
        except _Undelivered:
            return  # the cursor stays where it was, and so does what the rules remember there
        self._save()

    def step(self, ledger: Ledger, stop: Supervision) -> None:
        """Deliver what the events that are there by now call for, and how things stand."""
        while events := ledger.events(self._seq, limit=PAGE):
            for event in events:
                for alert in self._alerts_after(ledger, event):
                    self._deliver(alert, stop)
                    self._save_at_s = 0.0
                self._seq = event.seq
                if self._clock.monotonic_s() >= self._save_at_s:
                    self._save()
        if self._looks and self._clock.monotonic_s() >= self._look_at_s:
            self._look_at_s = self._clock.monotonic_s() + LOOK_EVERY_S
            situations = [one for look in self._looks for one in look(ledger)]
            for alert in self._alerts.about(situations, self._clock.now_ms()):
                self._deliver(alert, stop)

    def _alerts_after(self, ledger: Ledger, event: Event) -> list[Alert]:
        rows = ledger.jobs(event.job_key) if event.job_key and concerns(event) else []
        if not rows:
            return []  # nobody's concern, or the job was deleted, and so were its troubles
        refusals = 0
        if is_refusal(event):
            task = task_with(ledger, event.job_key, event.task_id or 0)
            refusals = task.refusals if task is not None and task.state in CLAIMABLE else 0
        return self._alerts.after(event, rows[0].job.pipeline, refusals)

    def _deliver(self, alert: Alert, stop: Supervision) -> None:
        """Send until the receiver has it, for a day, or a few times if it refuses this alert.

        Raises `_Undelivered` when stopped.
        """
        body, tries = body_of(alert), 0
        while not stop.is_set():
            answer = self._hook.send(alert.id, body)
            if answer.delivered:
                if tries:
                    log.warning("%s takes alerts again", self._hook.name)
                return
            tries += 1
            if answer.status == GONE:
                log.error("%s is gone: it gets no alerts until a restart", self._hook.name)
                raise _Undelivered
            if tries == 1:
                log.warning("%s does not take alerts: %s", self._hook.name, answer.said)
            is_late = answer.refused or self._clock.now_ms() - alert.at_ms > GIVE_UP_MS
            if tries >= TRIES_MIN and is_late:
                log.error(
                    "an alert is given up: %s: %s (%s)", alert.kind, alert.message, answer.said
                )
                return
            pause_s = BACK_OFF_S[min(tries, len(BACK_OFF_S)) - 1] * random.uniform(0.8, 1.2)
            stop.wait(max(pause_s, answer.wait_s))
        raise _Undelivered

    def _save(self) -> None:
        if self._seq == self._saved_seq:
            return
        self._save_at_s = self._clock.monotonic_s() + SAVE_EVERY_S
        try:
            self._cursor.move(self._seq, self._alerts.state())
            self._saved_seq = self._seq
        except IntermissionError as e:  # then more is sent again after a restart, nothing else
            log.warning("the cursor of alerts cannot be written: %s", e)


def body_of(alert: Alert) -> bytes:
    """A message as receivers get it: equal bytes for every try."""
    data = {
        "id": alert.id,
        "subject": dict(alert.subject),
        "message": alert.message,
        "remedy": alert.remedy,
        "held_back": alert.held_back,
    }
    document = {"type": alert.kind, "timestamp": timestamp(alert.at_ms), "data": data}
    return canonical(document).encode()


def alert_services(fleet: Fleet, uploads: Uploads, opened: ExitStack) -> list[Service]:
    """One service for each URL in the settings, which tells what happens from now on.

    What they need is closed with `opened`. Raises `UsageError` for settings that cannot work,
    before anything is sent.
    """
    services: list[Service] = []
    for url, hook in hooks_of(fleet.settings, fleet.app.clock).items():
        follower = Follower(
            hook,
            Cursor(uploads.open(), identity(url)),
            fleet.open_ledger,
            kinds=fleet.settings.webhook_kinds,
            clock=fleet.app.clock,
            looks=_looks(fleet, uploads, opened),
        )
        services.append(Service(f"alerts for {hook.name}", follower.run, hurry=hook.abort))
    return services


def hooks_of(settings: Settings, clock: Clock) -> dict[str, Hook]:
    """The receivers by URL. Raises `UsageError` for what cannot be one."""
    if not settings.webhook_urls:
        return {}
    unknown = sorted(set(settings.webhook_kinds) - set(KINDS))
    if unknown:
        raise UsageError(
            f"webhook_kinds: there is no alert {unknown[0]!r}.",
            remedy=f"The alerts are: {', '.join(KINDS)}.",
        )
    if settings.webhook_secret is None:
        raise UsageError(
            "webhook_urls is set, but there is no webhook_secret to sign alerts with.",
            remedy="Make one, and give it to the receiver too: "
            'INTERMISSION_WEBHOOK_SECRET="whsec_$(openssl rand -base64 32)"',
        )
    secret = secret_bytes(settings.webhook_secret.get_secret_value())
    allow_private = settings.webhook_allow_private == "yes"
    return {
        url: Hook(url, secret, clock=clock, allow_private=allow_private)
        for url in settings.webhook_urls
    }


def _looks(fleet: Fleet, uploads: Uploads, opened: ExitStack) -> Iterator[Look]:
    """What has to be looked at for the kinds that are wanted."""
    settings, clock = fleet.settings, fleet.app.clock
    if "queue.old" in settings.webhook_kinds:
        yield Queues(_scope(settings), clock).look
    a_file = uploads.open().local_path("alerts")
    if "disk.low" in settings.webhook_kinds and a_file is not None:
        folder = a_file.parent
        yield lambda _: low_disk(folder, *disk_usage(folder))
    if {"worker.offline", "worker.online"} & set(settings.webhook_kinds):
        registry = opened.enter_context(closing(open_registry(settings)))
        watch = WorkerWatch(registry, clock)
        yield lambda _: watch.look()


def _scope(settings: Settings) -> str:
    """Which ledger it is, for servers that share one and receivers that hear of several."""
    ledger = settings.ledger or ""
    if is_url(ledger):
        return ledger
    return f"{socket.gethostname()} {Path(ledger).expanduser().resolve()}"
