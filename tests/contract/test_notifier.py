"""Every notifier against the one contract, broken ones it must catch, what settings ask for."""

from __future__ import annotations

import inspect
import os
import select
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
import redis

from intermission.backends.ledger.postgres import PostgresLedger
from intermission.backends.notifier import fleet_name, open_notifiers
from intermission.backends.notifier.local import LocalNotifier
from intermission.backends.notifier.postgres import CHANNEL, PostgresNotifier
from intermission.backends.notifier.redis import EXPIRES_S, LENGTH_MAX, RedisNotifier
from intermission.errors import EnvironmentFault, UsageError
from intermission.ports.notifier import Notifier
from intermission.settings import Settings
from intermission.testing import jobs
from intermission.testing.notifier import NotifierContract, has_hint
from servers.postgres import Databases

ARRIVES_S = NotifierContract.ARRIVES_S
QUIET_S = NotifierContract.QUIET_S


def one_at_a_time(make: Callable[[], Notifier]) -> Callable[[], Notifier]:
    """The same notifier until it is closed, because a local one reaches only itself."""
    made: list[Notifier] = []

    def open_notifier() -> Notifier:
        try:
            made[-1].fileno()
        except (IndexError, ValueError):
            made.append(make())
        return made[-1]

    return open_notifier


class TestLocalNotifier(NotifierContract):
    ALONE = True

    @pytest.fixture
    def open_notifier(self) -> Callable[[], Notifier]:
        return one_at_a_time(LocalNotifier)


@pytest.fixture(scope="module")
def database(postgres: Databases) -> str:
    return postgres.empty()


class NotifyingDatabase(PostgresNotifier):
    """Notifies as the ledger's transactions do, without a ledger."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._database = url

    def notify(self) -> None:
        if not self._closed.is_set():
            with psycopg.connect(self._database, autocommit=True) as connection:
                connection.execute("SELECT pg_notify(%s, '')", (CHANNEL,))


class TestPostgresNotifier(NotifierContract):
    RETURNS_S = 10.0  # the double connects for every hint; the product sends nothing
    BURST = 50

    @pytest.fixture
    def open_notifier(self, database: str) -> Callable[[], Notifier]:
        return lambda: NotifyingDatabase(database)

    def test_every_listener_gets_the_hint(self, notifiers: Callable[[], Notifier]) -> None:
        listeners = [self.listening(notifiers) for _ in range(3)]
        notifiers().notify()
        assert all(has_hint(notifier, self.ARRIVES_S) for notifier in listeners)

    def test_a_call_of_notify_adds_nothing_to_what_the_ledger_sends(
        self, notifiers: Callable[[], Notifier], database: str
    ) -> None:
        notifier = self.listening(notifiers)
        with closing(PostgresNotifier(database)) as notifying:
            notifying.notify()
        assert not has_hint(notifier, self.QUIET_S)

    def test_the_ledger_notifies_when_tasks_become_claimable(self, postgres: Databases) -> None:
        """By itself, in its own transaction; and not for what makes nothing claimable."""
        url = postgres.fresh()
        with (
            closing(PostgresLedger(url)) as ledger,
            closing(PostgresNotifier(url)) as notifier,
        ):
            assert has_hint(notifier, self.ARRIVES_S)
            notifier.clear()
            made = jobs.submit(ledger, jobs.line_job())
            assert has_hint(notifier, self.ARRIVES_S), "not at a submission"
            notifier.clear()
            (lease,) = ledger.claim("worker", 1, lease_ttl_s=60)
            assert not has_hint(notifier, self.QUIET_S), "at a claim"
            ledger.complete([jobs.completion(ledger, made, lease)])
            assert has_hint(notifier, self.ARRIVES_S), "not at a completion that unblocks a task"

    def test_probes_wake_nobody(self, database: str) -> None:
        with closing(PostgresNotifier(database, probe_every_s=0.02)) as notifier:
            assert has_hint(notifier, ARRIVES_S)
            notifier.clear()
            assert not has_hint(notifier, 0.5)
            assert notifier.failures == 0


class TestRedisNotifier(NotifierContract):
    @pytest.fixture
    def open_notifier(self, valkey: str) -> Callable[[], Notifier]:
        fleet = os.urandom(8).hex()
        return lambda: RedisNotifier(valkey, fleet=fleet)

    def test_one_idle_listener_gets_the_hint(self, notifiers: Callable[[], Notifier]) -> None:
        """The others are not woken for nothing."""
        listeners = [self.listening(notifiers) for _ in range(4)]
        notifying = notifiers()
        for _ in range(6):
            notifying.notify()
            (woken,) = select.select(listeners, [], [], self.ARRIVES_S)[0]
            assert select.select(listeners, [], [], self.QUIET_S)[0] == [woken]
            woken.clear()

    def test_a_busy_listener_takes_one_hint_and_leaves_the_next_to_others(
        self, notifiers: Callable[[], Notifier]
    ) -> None:
        listeners = [self.listening(notifiers) for _ in range(2)]
        notifying = notifiers()
        for busy in (1, 2):
            notifying.notify()
            until_hints(listeners, busy)

    def test_a_hint_stays_within_its_fleet(
        self, notifiers: Callable[[], Notifier], valkey: str
    ) -> None:
        own = self.listening(notifiers)
        with closing(RedisNotifier(valkey, fleet=os.urandom(8).hex())) as other:
            assert has_hint(other, self.ARRIVES_S)
            other.clear()
            notifiers().notify()
            assert has_hint(own, self.ARRIVES_S)
            assert not has_hint(other, self.QUIET_S)

    def test_the_list_stays_short_and_expires(
        self, notifiers: Callable[[], Notifier], valkey: str
    ) -> None:
        notifier = notifiers()
        assert isinstance(notifier, RedisNotifier)
        with redis.Redis.from_url(valkey) as server:
            server.rpush(notifier.key, *[""] * 100)
            notifier.notify()
            notifier.close()
            assert server.llen(notifier.key) == LENGTH_MAX
            assert 0 < int(server.ttl(notifier.key)) <= EXPIRES_S

    def test_a_closed_listener_takes_no_hint(
        self, notifiers: Callable[[], Notifier], valkey: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also one that was waiting for it, and would be for longer than its end waits."""
        monkeypatch.setattr("intermission.backends.notifier.redis.BLOCK_S", 60)
        gone, notifying = self.listening(notifiers), notifiers()
        gone.close()
        notifying.notify()
        notifying.close()
        assert isinstance(gone, RedisNotifier)
        with redis.Redis.from_url(valkey) as server:
            assert server.llen(gone.key) == 1


def until_hints(notifiers: list[Notifier], count: int) -> None:
    """Wait until so many have a hint."""
    poll = select.poll()
    for notifier in notifiers:
        poll.register(notifier, select.POLLIN)
    for _ in range(1000):
        if len(poll.poll(0)) == count:
            return
        select.select([], [], [], ARRIVES_S / 1000)
    raise AssertionError(f"expected {count} with a hint, found {len(poll.poll(0))}")


class Mute(LocalNotifier):
    """Hints are lost."""

    def notify(self) -> None:
        if not hasattr(self, "_began"):
            self._began = True
            super().notify()


class Endless(LocalNotifier):
    """Hints stay after they were cleared."""

    def clear(self) -> None:
        return


class Silent(LocalNotifier):
    """It does not say when it begins to listen."""

    def __init__(self) -> None:
        super().__init__(notified=False)


class Fussy(LocalNotifier):
    """Notifying fails at the wrong time."""

    def notify(self) -> None:
        self.fileno()
        super().notify()


class Reckless(LocalNotifier):
    """It goes on using its descriptors."""

    def notify(self) -> None:
        os.write(self._write, b"\0")
        self._has_hint = True

    def clear(self) -> None:
        os.set_blocking(self._read, False)
        while select.select([self._read], [], [], 0)[0]:
            os.read(self._read, 1)


CANARIES: dict[type[LocalNotifier], set[str]] = {
    LocalNotifier: set(),
    Mute: {"a_hint_arrives", "who_waits_is_woken", "any_thread_may_notify"},
    Endless: {"it_says_once_that_it_listens"},
    Silent: {"it_says_once_that_it_listens"},
    Fussy: {"a_closed_notifier_takes_every_call_and_does_nothing"},
    Reckless: {"it_uses_no_descriptor_after_its_end"},
}


class Hasty(NotifierContract):
    ALONE = True
    ARRIVES_S = 0.05
    QUIET_S = 0.01


@pytest.mark.parametrize("broken", CANARIES, ids=lambda notifier: notifier.__name__)
def test_the_suite_catches_a_broken_notifier(broken: type[LocalNotifier]) -> None:
    failed = failures(broken)
    assert CANARIES[broken] <= failed
    assert CANARIES[broken] or not failed


def failures(make: Callable[[], Notifier]) -> set[str]:
    failed: set[str] = set()
    for name, test in inspect.getmembers(Hasty, inspect.isfunction):
        if not name.startswith("test_"):
            continue
        with ExitStack() as stack:
            open_notifier = one_at_a_time(make)
            given = {"self": Hasty(), "notifiers": open_notifier, "open_notifier": open_notifier}
            given |= {"used": "cleared"}
            wants = inspect.signature(test).parameters
            try:
                test(**{parameter: given[parameter] for parameter in wants})
            except pytest.skip.Exception:
                pass
            except (Exception, pytest.fail.Exception):
                failed.add(name.removeprefix("test_"))
            finally:
                stack.callback(open_notifier().close)
    return failed


POSTGRES = "postgresql://me:secret@db:5432/fleet"
REDIS = "redis://:secret@cache:6379/0"


@pytest.mark.parametrize(
    ("notifiers", "ledger", "expected"),
    [
        ("auto", None, []),
        ("auto", "fleet.sqlite", []),
        ("auto", POSTGRES, [PostgresNotifier]),
        ("auto", POSTGRES.replace("postgresql", "postgres"), [PostgresNotifier]),
        ("database", POSTGRES, [PostgresNotifier]),
        ("redis", POSTGRES, [RedisNotifier]),
        ("redis", "fleet.sqlite", [RedisNotifier]),
        ("hybrid", POSTGRES, [PostgresNotifier, RedisNotifier]),
        ("off", POSTGRES, []),
    ],
)
def test_the_settings_choose_the_notifiers(
    notifiers: str, ledger: str | None, expected: list
) -> None:
    settings = Settings.model_validate(
        {"notifiers": notifiers, "ledger": ledger, "redis_url": REDIS}
    )
    opened = open_notifiers(settings)  # nothing of this is reachable, and it starts all the same
    assert [type(notifier) for notifier in opened] == expected
    for notifier in opened:
        notifier.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"notifiers": "database"}, "notifiers is database, and the ledger is not in PostgreSQL"),
        ({"notifiers": "hybrid", "ledger": "a.sqlite", "redis_url": REDIS}, "not in PostgreSQL"),
        ({"notifiers": "redis", "ledger": POSTGRES}, "redis_url does not say where"),
        ({"notifiers": "redis", "redis_url": "redis://:secret@cache:port/0"}, "no address"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        open_notifiers(Settings.model_validate(given))
    assert caught.value.remedy
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("extra", ["postgres", "redis"])
def test_a_missing_package_is_named(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for module in ("notifier.postgres", "redis_client"):
        monkeypatch.setattr(f"intermission.backends.{module}.find_spec", lambda name: None)
    notifiers = {"postgres": "database", "redis": "redis"}[extra]
    with pytest.raises(EnvironmentFault, match=rf"intermission\[{extra}\]"):
        open_notifiers(
            Settings.model_validate(
                {"notifiers": notifiers, "ledger": POSTGRES, "redis_url": REDIS}
            )
        )


def test_a_fleet_has_one_name_whoever_logs_in(tmp_path: Path) -> None:
    def named(ledger: str) -> str:
        return fleet_name(Settings.model_validate({"ledger": ledger}))

    assert named(POSTGRES) == named("postgresql://other:word@db:5432/fleet?sslmode=require")
    assert named(POSTGRES) != named("postgresql://db:5432/another")
    assert named(str(tmp_path / "a" / ".." / "l.sqlite")) == named(str(tmp_path / "l.sqlite"))
