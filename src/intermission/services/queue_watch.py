"""Messages about a watched bucket: an object is submitted as soon as a queue tells of it.

A queue is a hint. It may be late, tell a thing twice, or lose it, and the place is listed besides.
So nothing here decides what has a job: that is the ledger's to know, and `FolderWatch`'s to ask.
A message is deleted when every object in it has its job in the ledger, or needs none. Killed
before that, it comes again, and finds the job. What cannot be read stays in the queue, whose own
policy says how often it is tried and where it goes then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from intermission.backends.events.s3_notifications import Created, NotUnderstood, read_message
from intermission.backends.events.sqs import WAIT_S, Message, SqsQueue
from intermission.errors import EnvironmentFault, IntermissionError, UsageError, fault_from_os
from intermission.services.folder_watch import FolderWatch
from intermission.services.supervisor import Service, Supervision

if TYPE_CHECKING:
    from intermission.services.watch_scheduler import Teller, Watch

PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""How long a queue that cannot be used is left alone: after the first time, the second..."""
TURN_S = 1.0
"""After a turn in which no message could be done with: they may come again at once."""
FINISH_S = 3.0
_WARNED_MAX = 10_000

log = logging.getLogger(__name__)


class Queue(Protocol):
    """What an `SqsQueue` is to those who listen to it."""

    url: str

    def receive(self, wait_s: int = ...) -> list[Message]: ...
    def delete(self, messages: Sequence[Message]) -> None: ...
    def close(self) -> None: ...


def queue_of(url: str, place: str) -> SqsQueue:
    """The queue that tells of a place. Raises `UsageError` for what cannot be meant."""
    if not place.startswith(("s3://", "s3a://")):
        raise UsageError(
            f"a queue is given for {place}, which is not in S3.",
            remedy="Leave the queue away: the place is looked at every so often.",
        )
    return SqsQueue(url)


class QueueWatch:
    """Takes messages from a queue, for all the places that it tells of, until it is stopped."""

    def __init__(
        self, queue: Queue, folders: Sequence[FolderWatch], *, stop: Supervision, teller: Teller
    ) -> None:
        self._queue = queue
        self._folders = folders
        self._stop = stop
        self._teller = teller
        self._handling = threading.Lock()
        self._warned: set[str] = set()
        self._failures = 0
        self._is_heard = False
        """Whether the last turn went well. If not, the next one does not wait for messages."""

    def finish(self) -> None:
        """Wait for what is being submitted, but not for messages that may never come."""
        self._handling.acquire(timeout=FINISH_S)

    def run(self) -> None:
        while not self._stop.is_set():
            pause_s = self._turn()
            self._stop.succeeded()
            self._stop.wait(pause_s)
        self._queue.close()

    def _turn(self) -> float:
        """Receive messages and handle them; how long to wait before the next."""
        try:
            messages = self._queue.receive(WAIT_S if self._is_heard else 0)
            with self._handling:
                pause_s = self._handle(messages)
        except IntermissionError as e:
            return self._leave(e)
        except OSError as e:
            return self._leave(fault_from_os(e, "taking messages", EnvironmentFault))
        self._hear()
        return pause_s

    def _handle(self, messages: Sequence[Message]) -> float:
        """Submit what messages tell of, and delete them; how long to wait before the next."""
        done: list[Message] = []
        try:
            for message in messages:
                if self._stop.is_set():
                    return 0.0
                if self._is_done(message):
                    done.append(message)
        finally:  # those before one at which the ledger failed are in it
            if done:
                self._queue.delete(done)
        return TURN_S if messages and not done else 0.0

    def _is_done(self, message: Message) -> bool:
        try:
            created = read_message(message.body)
        except NotUnderstood as e:
            self._warn(message.id, f"a message is left there, for {e}: {message.body[:200]!r}")
            return False
        taken = [self._take(one) for one in created]  # each of them, whatever one says
        return all(taken)

    def _take(self, created: Created) -> bool:
        folders = [folder for folder in self._folders if folder.bucket == created.bucket]
        if not folders:
            said = f"messages about the bucket {created.bucket!r} are left there: nobody watches it"
            self._warn(created.bucket, said)
            return False
        is_done = True
        for folder in folders:
            needs_nothing, outcome = folder.arrived(created.key)
            is_done = is_done and needs_nothing
            if outcome is not None:
                place, job = outcome
                if isinstance(job, IntermissionError):
                    self._teller.failed(place, job)
                else:
                    self._teller.submitted(place, job)
        return is_done

    def _warn(self, what: str, said: str) -> None:
        """Say something once."""
        if what not in self._warned:
            if len(self._warned) >= _WARNED_MAX:
                self._warned.clear()
            self._warned.add(what)
            log.warning("%s: %s", self._queue.url, said)

    def _leave(self, error: IntermissionError) -> float:
        """How long to leave the queue alone; that it is away is told once."""
        if not self._failures:
            self._teller.away(self._queue.url, error)
        pause_s = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._failures += 1
        self._is_heard = False
        return pause_s

    def _hear(self) -> None:
        if self._failures:
            self._failures = 0
            self._teller.back(self._queue.url)
        self._is_heard = True


def queue_services(watches: Sequence[Watch], teller: Teller) -> list[Service]:
    """A service for each queue of these watches; those that name the same share its messages."""

    def service(queue: Queue) -> Service:
        told = [w.folder for w in watches if w.queue is not None and w.queue.url == queue.url]
        made: list[QueueWatch] = []

        def make(stop: Supervision) -> Callable[[], None]:
            made.append(QueueWatch(queue, told, stop=stop, teller=teller))
            return made[0].run

        return Service(f"queue {queue.url}", make, finish=lambda: made[0].finish())

    queues = {watch.queue.url: watch.queue for watch in watches if watch.queue is not None}
    return [service(queue) for queue in queues.values()]
