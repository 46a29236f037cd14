"""Connections to Redis, or to whatever speaks its protocol."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING

from intermission.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from redis import Redis

TIMEOUT_S = 1.0


def redis_client(url: str, timeout_s: float = TIMEOUT_S) -> Redis:
    """A client that fails instead of waiting: its caller decides when to try again."""
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
