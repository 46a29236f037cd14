"""Notifiers whose server dies, hangs or forgets: nobody is disturbed, and hints come again.

Each notifier is told to look again much sooner than it would by itself, because that is waited for.
"""

from __future__ import annotations

import logging
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest
import redis

from intermission.backends.notifier.postgres import CHANNEL, PostgresNotifier
from intermission.backends.notifier.redis import LIST, RedisNotifier
from intermission.ports.notifier import Notifier
from intermission.testing.notifier import has_hint
from servers.pooler import Pooler
from servers.postgres import PostgresServer
from servers.valkey import ValkeyServer

ARRIVES_S = 20.0
RETURNS_S = 0.5
"""A call of `notify` takes microseconds; this machine may be busy."""
SOON_S = 0.2
POLL_S = 1.0
HINTS = f"{LIST}intermission"


@pytest.fixture
def server(valkey_server: Callable[[], ValkeyServer]) -> ValkeyServer:
    return valkey_server()


@pytest.fixture(scope="module")
def database(postgres_server: Callable[..., PostgresServer]) -> PostgresServer:
    return postgres_server()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """What was logged that matches a pattern."""
    caplog.set_level(logging.INFO, "intermission.backends.server_outage")

    def matching(pattern: str) -> list[str]:
        return [message for message in caplog.messages if re.search(pattern, message)]

    return matching


def listening(stack: ExitStack, notifier: Notifier) -> Notifier:
    """The notifier, once it listens; closed at the end."""
    stack.callback(notifier.close)
    assert has_hint(notifier, ARRIVES_S)
    notifier.clear()
    return notifier


def notify(notifier: Notifier, times: int = 1) -> None:
    """Notify, which must neither raise nor take long."""
    for _ in range(times):
        began_s = time.monotonic()
        notifier.notify()
        assert time.monotonic() - began_s < RETURNS_S


def until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + ARRIVES_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen in {ARRIVES_S:g} s"
        select.select([], [], [], 0.01)


def until_hints_arrive_again(notifier: Notifier, notifying: Notifier) -> None:
    """Both have noticed that their server is back, and a hint sent now arrives."""
    assert has_hint(notifier, ARRIVES_S), "it did not say that it listens again"

    def is_quiet() -> bool:
        notifier.clear()
        return not has_hint(notifier, 0.1)

    until(is_quiet, "quiet")

    def arrives() -> bool:  # the one who notifies may still pause
        notify(notifying)
        return has_hint(notifier, 0.05)

    until(arrives, "a hint")


def test_redis_killed_and_restarted(
    server: ValkeyServer, stack: ExitStack, said: Callable[[str], list[str]]
) -> None:
    notifier = listening(stack, RedisNotifier(server.url, pause_max_s=SOON_S))
    notifying = RedisNotifier(server.url, pause_max_s=SOON_S)
    stack.callback(notifying.close)
    notify(notifying)
    assert has_hint(notifier, ARRIVES_S)
    notifier.clear()

    server.kill()
    until(lambda: notifier.failures >= 5, "the listener to notice")
    until(lambda: notify(notifying) or notifying.failures >= 5, "the one who notifies to notice")
    notifier.clear()
    assert not has_hint(notifier, 0.1)

    server.start()
    until_hints_arrive_again(notifier, notifying)
    until(lambda: said("listening to Redis works again"), "the listener to say so")
    assert len(said("listening to Redis failed")) == 1
    assert len(said("notifying through Redis failed")) == 1
    until(lambda: len(said("works again")) == 2, "the one who notifies to say so")


def test_redis_that_is_not_there_at_first(
    server: ValkeyServer, stack: ExitStack, said: Callable[[str], list[str]]
) -> None:
    server.kill()
    notifier = RedisNotifier(server.url, pause_max_s=SOON_S)
    stack.callback(notifier.close)
    notify(notifier)
    assert not has_hint(notifier, 0.1)
    until(lambda: said("listening to Redis failed"), "a warning")
    server.start()
    until_hints_arrive_again(notifier, notifier)


def test_redis_that_hangs(
    server: ValkeyServer, stack: ExitStack, said: Callable[[str], list[str]]
) -> None:
    """It takes connections and answers nothing: who notifies does not notice."""
    notifier = listening(stack, RedisNotifier(server.url, pause_max_s=SOON_S))
    server.freeze()
    notify(notifier, 100)
    until(lambda: said("notifying through Redis failed"), "a time-out")
    until(lambda: said("listening to Redis failed"), "another")
    server.thaw()
    until_hints_arrive_again(notifier, notifier)


def test_closing_while_redis_hangs(server: ValkeyServer, stack: ExitStack) -> None:
    notifier = listening(stack, RedisNotifier(server.url))
    server.freeze()
    notifier.notify()
    began_s = time.monotonic()
    notifier.close()
    assert time.monotonic() - began_s < 8
    server.thaw()


def test_a_hint_after_a_restart_is_not_lost(server: ValkeyServer, stack: ExitStack) -> None:
    """The connection that it was sent over before is gone."""
    notifying = RedisNotifier(server.url)
    stack.callback(notifying.close)
    for _ in range(2):
        with closing(redis.Redis.from_url(server.url)) as client:
            client.delete(HINTS)
            notify(notifying)
            until(lambda client=client: client.llen(HINTS) == 1, "the hint")
        server.kill()
        server.start()
    assert not notifying.failures


def test_redis_that_forgot_everything(server: ValkeyServer, stack: ExitStack) -> None:
    notifier = listening(stack, RedisNotifier(server.url, pause_max_s=SOON_S))
    with closing(redis.Redis.from_url(server.url)) as client:
        client.flushall()
    notify(notifier)
    assert has_hint(notifier, ARRIVES_S)


def test_redis_is_left_alone_for_a_while_after_it_failed(
    server: ValkeyServer, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intermission.backends.server_outage.PAUSE_S", 60.0)
    notifier = RedisNotifier(server.url, pause_max_s=60)
    stack.callback(notifier.close)
    server.kill()
    notify(notifier)
    until(lambda: notifier.failures == 1, "a failure")
    server.start()
    notify(notifier)
    with closing(redis.Redis.from_url(server.url)) as client:
        assert not client.exists(HINTS)
    assert notifier.failures == 1


def send_notice(database: PostgresServer) -> None:
    """As the ledger's transactions do."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("SELECT pg_notify(%s, '')", (CHANNEL,))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "at once"])
def test_postgres_restarted(
    database: PostgresServer,
    stack: ExitStack,
    said: Callable[[str], list[str]],
    how: signal.Signals,
) -> None:
    notifier = listening(stack, PostgresNotifier(database.url))
    send_notice(database)
    assert has_hint(notifier, ARRIVES_S)
    notifier.clear()
    database.stop(how)
    until(lambda: notifier.failures >= 3, "the listener to notice")
    notifier.clear()
    database.start()
    assert has_hint(notifier, ARRIVES_S), "it did not say that it listens again"
    until(lambda: said("listening to the database works again"), "the listener to say so")
    assert len(said("listening to the database failed")) == 1


def test_a_connection_that_is_cut(database: PostgresServer, stack: ExitStack) -> None:
    notifier = listening(stack, PostgresNotifier(database.url))
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'intermission notifier'"
        )
    assert has_hint(notifier, ARRIVES_S), "what it may have missed"
    notifier.clear()
    send_notice(database)
    assert has_hint(notifier, ARRIVES_S)


def test_a_pooler_that_drops_notices_is_found_out(
    database: PostgresServer, stack: ExitStack, said: Callable[[str], list[str]]
) -> None:
    pooler = stack.enter_context(Pooler(database.port).running())
    pooler.drops_notices = True
    notifier = listening(stack, PostgresNotifier(pooler.url, probe_within_s=0.1))
    until(lambda: notifier.failures >= 3, "the notifier to notice, and to notice again")
    assert pooler.dropped >= 3
    (found,) = said("listening to the database failed")
    assert "pooler" in found
    assert not said("works again")

    pooler.drops_notices = False
    until(
        lambda: said("listening to the database works again"), "the notifier to get its own notice"
    )
    send_notice(database)
    assert has_hint(notifier, ARRIVES_S)


def test_a_notifier_that_gets_no_more_notices_is_found_out(
    database: PostgresServer, stack: ExitStack, said: Callable[[str], list[str]]
) -> None:
    """As after a failover of the pooler: it worked, and the connection still stands."""
    pooler = stack.enter_context(Pooler(database.port).running())
    notifier = listening(stack, PostgresNotifier(pooler.url, probe_every_s=0.1, probe_within_s=1.0))
    assert not has_hint(notifier, 0.5), "its own probes woke it"
    assert not notifier.failures
    pooler.drops_notices = True
    until(lambda: said("listening to the database failed"), "the notifier to notice")


@pytest.mark.parametrize("kind", ["redis", "notify"])
def test_a_lost_hint_is_only_late(kind: str, stack: ExitStack) -> None:
    """Nothing but polling is left when the servers are gone, and polling finds what is there."""
    gone = "127.0.0.1:1"
    notifier: Notifier = (
        RedisNotifier(f"redis://{gone}")
        if kind == "redis"
        else PostgresNotifier(f"postgresql://{gone}/x")
    )
    stack.callback(notifier.close)
    work: list[str] = []
    found_s: list[float] = []

    def worker() -> None:
        while not work:
            if has_hint(notifier, POLL_S):
                notifier.clear()
        found_s.append(time.monotonic())

    waiting = threading.Thread(target=worker)
    waiting.start()
    until(lambda: notifier.failures, "the notifier to notice that there is no server")
    work.append("a task")
    put_s = time.monotonic()
    notify(notifier)
    waiting.join(ARRIVES_S)
    assert found_s[0] - put_s < 2 * POLL_S
