"""A notifier over Redis Streams, or whatever speaks that protocol.

Three streams, so that a flood of unimportant hints pushes no important one out. Workers read as
consumers of their fleet's group, so that a hint wakes the one who has waited longest, and not all
of them. A hint is acknowledged when its listener has taken it; one that a dead or busy worker
took is claimed by another. A server that fails is left alone for a while by a breaker.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Collection
from importlib.util import find_spec
from random import uniform
from typing import TYPE_CHECKING, Any

from intermission.backends.notifier.breaker import OPEN_S, Breaker
from intermission.backends.notifier.local import LocalNotifier
from intermission.backends.notifier.notifying_thread import NotifyingThread
from intermission.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from redis import Redis

STREAMS = {
    1: "intermission:notifier:high",
    0: "intermission:notifier:normal",
    -1: "intermission:notifier:low",
}
LENGTH_MAX = 1000
BLOCK_S = 2.0
UNTAKEN_S = 5.0
"""How long a hint may lie with a worker that has not taken it, until another takes it over."""
FORGOTTEN_S = 3600.0
"""How long a consumer is silent that nobody will miss; one that reads again is made again."""
RETRY_S = 0.2
CLOSE_S = 2.0
TIMEOUT_S = 1.0
log = logging.getLogger(__name__)


class RedisNotifier:
    """Of the idle listeners of a fleet, one gets a hint."""

    def __init__(
        self,
        url: str,
        *,
        fleet: str = "intermission",
        open_s: float = OPEN_S,
        untaken_s: float = UNTAKEN_S,
    ) -> None:
        """`fleet` names the consumer group; `open_s` is how long the breaker stays open."""
        self._sender = client(url, TIMEOUT_S)
        self._listening = client(url, BLOCK_S + TIMEOUT_S)
        self.fleet = fleet
        self._untaken_s = untaken_s
        self._me = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self._notify_breaker = Breaker("notifying through Redis", open_s=open_s)
        self._notifying = NotifyingThread(self._notify_breaker, self._send, self._sender.close)
        self._listen_breaker = Breaker("listening to Redis", open_s=open_s)
        self._near = LocalNotifier(notified=False)
        self._taken = threading.Event()
        self._closed = threading.Event()
        self._connection_id: int | None = None
        self._look_at_s = 0.0
        self._thread: threading.Thread | None = None

    @property
    def failures(self) -> int:
        return self._notify_breaker.failures + self._listen_breaker.failures

    def notify(self, priority: int = 0) -> None:
        self._notifying.notify(priority)

    def fileno(self) -> int:
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="notifier-redis", daemon=True)
            self._thread.start()
        return self._near.fileno()

    def clear(self) -> None:
        self._near.clear()
        self._taken.set()

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._taken.set()
        if self._thread is not None:
            self._unblock(self._thread)
        self._notifying.close()
        self._sender.close()
        self._near.close()

    def _send(self, levels: Collection[int]) -> None:
        with self._sender.pipeline(transaction=False) as pipeline:
            for level in levels:
                pipeline.xadd(STREAMS[level], {"hint": ""}, maxlen=LENGTH_MAX, approximate=True)
            pipeline.execute()

    def _unblock(self, thread: threading.Thread) -> None:
        """End the read that the listening thread may be blocked in, or be about to begin."""
        give_up_s = time.monotonic() + CLOSE_S
        while thread.is_alive() and time.monotonic() < give_up_s:
            try:
                if self._connection_id is not None:
                    self._sender.client_unblock(self._connection_id)
            except Exception:  # then the read ends by itself, soon after
                self._connection_id = None
            thread.join(0.02)

    def _run(self) -> None:
        """Listen until the notifier is closed, whatever happens to the server."""
        joined = False
        while not self._closed.is_set():
            try:
                if not joined:
                    self._join()
                    self._near.notify()
                joined = True
                taken = self._take()
                self._listen_breaker.succeeded()
                if taken:
                    self._wait_until_taken()
                    self._acknowledge(taken)
            except Exception as e:  # nothing may depend on a notifier, so nothing may end it
                joined = False
                self._listen_breaker.failed(e)
                self._closed.wait(self._listen_breaker.wait_s or RETRY_S * uniform(0.5, 1.5))
        self._leave()

    def _join(self) -> None:
        """Make the groups where they are missing, and forget workers that are long gone."""
        from redis.exceptions import ResponseError

        redis = self._listening
        self._connection_id = redis.client_id()
        for stream in STREAMS.values():
            try:
                redis.xgroup_create(stream, self.fleet, id="$", mkstream=True)
            except ResponseError as e:
                if "BUSYGROUP" not in str(e):
                    raise
            for consumer in redis.xinfo_consumers(stream, self.fleet):
                if consumer["idle"] > FORGOTTEN_S * 1000:
                    redis.xgroup_delconsumer(stream, self.fleet, consumer["name"])

    def _take(self) -> dict[str, list[Any]]:
        """Hints by stream: those that nobody took care of, else the next that come.

        All that lie there at once: who was too busy for them has asked the ledger since.
        """
        if time.monotonic() >= self._look_at_s:
            self._look_at_s = time.monotonic() + self._untaken_s
            if untaken := self._take_over():
                return untaken
        found: Any = self._listening.xreadgroup(
            self.fleet,
            self._me,
            dict.fromkeys(STREAMS.values(), ">"),
            count=LENGTH_MAX,
            block=int(min(BLOCK_S, self._untaken_s) * 1000),
        )
        return {stream: [hint for hint, _ in hints] for stream, hints in found or ()}

    def _take_over(self) -> dict[str, list[Any]]:
        untaken: dict[str, list[Any]] = {}
        for stream in STREAMS.values():
            answer: Any = self._listening.xautoclaim(
                stream,
                self.fleet,
                self._me,
                min_idle_time=int(self._untaken_s * 1000),
                count=LENGTH_MAX,
                justid=True,
            )
            if answer:
                untaken[stream] = list(answer)
        return untaken

    def _wait_until_taken(self) -> None:
        """Take no more hints from others while this listener is busy with something else."""
        self._taken.clear()
        self._near.notify()
        if not self._closed.is_set():  # else `close` may have been faster, and was cleared
            self._taken.wait()

    def _acknowledge(self, taken: dict[str, list[Any]]) -> None:
        """Unless the notifier was closed over it: then it is for another to take."""
        if self._near.has_hint:
            return
        for stream, hints in taken.items():
            self._listening.xack(stream, self.fleet, *hints)

    def _leave(self) -> None:
        try:
            for stream in STREAMS.values():
                waiting = self._listening.xpending_range(
                    stream, self.fleet, "-", "+", 1, consumername=self._me
                )
                if not waiting:
                    self._listening.xgroup_delconsumer(stream, self.fleet, self._me)
        except Exception:  # a notifier that is closed raises nothing, and others clear up later
            log.debug("left for others to forget", exc_info=True)
        self._listening.close()


def client(url: str, timeout_s: float) -> Redis:
    """A connection that fails instead of waiting: a breaker decides when to try again."""
    if find_spec("redis") is None:
        raise EnvironmentFault(
            "expected the package redis, which reaches a Redis server, found it missing.",
            remedy="Install it: pip install 'intermission[redis]'",
        )
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    try:
        return Redis.from_url(
            re.sub("^valkey", "redis", url),
            socket_timeout=timeout_s,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            protocol=2,
        )
    except ValueError as e:
        raise UsageError(
            f"{re.sub('//[^/@]*@', '//', url)} is no address of a Redis server: {e}.",
            remedy="Give redis://host:6379/0, rediss://host, or unix:///path/of/a/socket.",
        ) from e
