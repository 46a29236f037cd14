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
from typing import Protocol

from intermission.backends.events.s3_notifications import Created, NotUnderstood, read_message
from intermission.backends.events.sqs import WAIT_S, Message, SqsQueue
from intermission.errors import EnvironmentFault, UsageError, fault_from_os
from intermission.services.folder_watch import FolderWatch, Teller, tell
from intermission.services.supervisor import Service, Supervision

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

    def finish(self) -> None:
        """Wait for what is being submitted, but not for messages that may never come."""
        self._handling.acquire(timeout=FINISH_S)

    def run(self) -> None:
        """Take messages until stopped. Raises when the queue, the store or the ledger is away."""
        wait_s = 0  # whether the queue answers is known at once, not when a message comes
        while not self._stop.is_set():
            try:
                messages = self._queue.receive(wait_s)
                with self._handling:
                    pause_s = self._handle(messages)
            except OSError as e:
                raise fault_from_os(e, "taking messages", EnvironmentFault) from e
            self._stop.succeeded()
            self._stop.wait(pause_s)
            wait_s = WAIT_S
        self._queue.close()

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
                tell(self._teller, *outcome)
        return is_done

    def _warn(self, what: str, said: str) -> None:
        """Say something once."""
        if what not in self._warned:
            if len(self._warned) >= _WARNED_MAX:
                self._warned.clear()
            self._warned.add(what)
            log.warning("%s: %s", self._queue.url, said)


def queue_service(queue: Queue, folders: Sequence[FolderWatch], teller: Teller) -> Service:
    """Takes the messages of a queue for all the places that it tells of."""
    made: list[QueueWatch] = []

    def make(stop: Supervision) -> Callable[[], None]:
        made.append(QueueWatch(queue, folders, stop=stop, teller=teller))
        return made[0].run

    name = f"queue {queue.url}"
    return Service(name, make, is_essential=False, finish=lambda: made[0].finish())
