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
from collections.abc import Sequence

from intermission.backends.events.s3_notifications import Created, NotUnderstood, read_message
from intermission.backends.events.sqs import WAIT_S, Message, SqsQueue
from intermission.errors import EnvironmentFault, UsageError, fault_from_os
from intermission.services.folder_watch import FolderWatch, Tell
from intermission.services.supervisor import Service, Supervision

TURN_S = 1.0
"""After a turn in which no message could be done with: they may come again at once."""
FINISH_S = 3.0
_WARNED_MAX = 10_000

log = logging.getLogger(__name__)


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

    def __init__(self, queue: SqsQueue, folders: Sequence[FolderWatch], tell: Tell) -> None:
        self._queue = queue
        self._folders = folders
        self._tell = tell
        self._handling = threading.Lock()
        self._warned: set[str] = set()

    def finish(self) -> None:
        """Wait for what is being submitted, but not for messages that may never come."""
        self._handling.acquire(timeout=FINISH_S)

    def run(self, stop: Supervision) -> None:
        """Take messages until stopped. Raises when the queue, the store or the ledger is away."""
        wait_s = 0  # whether the queue answers is known at once, not when a message comes
        while not stop.is_set():
            try:
                messages = self._queue.receive(wait_s)
                with self._handling:
                    pause_s = self._handle(messages, stop)
            except OSError as e:
                raise fault_from_os(e, "taking messages", EnvironmentFault) from e
            stop.succeeded()
            stop.wait(pause_s)
            wait_s = WAIT_S
        self._queue.close()

    def _handle(self, messages: Sequence[Message], stop: Supervision) -> float:
        """Submit what messages tell of, and delete them; how long to wait before the next."""
        done: list[Message] = []
        try:
            for message in messages:
                if stop.is_set():
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
                self._tell(*outcome)
        return is_done

    def _warn(self, what: str, said: str) -> None:
        """Say something once."""
        if what not in self._warned:
            if len(self._warned) >= _WARNED_MAX:
                self._warned.clear()
            self._warned.add(what)
            log.warning("%s: %s", self._queue.url, said)


def queue_service(queue: SqsQueue, folders: Sequence[FolderWatch], tell: Tell) -> Service:
    """Takes the messages of a queue for all the places that it tells of."""
    watch = QueueWatch(queue, folders, tell)
    return Service(f"queue {queue.url}", watch.run, is_essential=False, finish=watch.finish)
