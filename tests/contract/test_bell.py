"""Every bell against the one contract, broken bells it must catch, and what settings ask for."""

from __future__ import annotations

import inspect
import os
import select
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis

from intermission.backends.bell import fleet_name, open_bells
from intermission.backends.bell.local import LocalBell
from intermission.backends.bell.notify import NotifyBell
from intermission.backends.bell.redis import STREAMS, RedisBell
from intermission.backends.ledger.postgres import PostgresLedger
from intermission.errors import EnvironmentFault, UsageError
from intermission.ports.bell import Bell
from intermission.settings import Settings
from intermission.testing import jobs
from intermission.testing.bell import BellContract, is_rung
from servers.postgres import Databases

HEARD_S = BellContract.HEARD_S
QUIET_S = BellContract.QUIET_S


def one_at_a_time(make: Callable[[], Bell]) -> Callable[[], Bell]:
    """The same bell until it is closed, because a local one hears only itself."""
    made: list[Bell] = []

    def open_bell() -> Bell:
        try:
            made[-1].fileno()
        except (IndexError, ValueError):
            made.append(make())
        return made[-1]

    return open_bell


class TestLocalBell(BellContract):
    ALONE = True

    @pytest.fixture
    def open_bell(self) -> Callable[[], Bell]:
        return one_at_a_time(LocalBell)


@pytest.fixture(scope="module")
def database(postgres: Databases) -> str:
    return postgres.empty()


class TestNotifyBell(BellContract):
    @pytest.fixture
    def open_bell(self, database: str) -> Callable[[], Bell]:
        return lambda: NotifyBell(database)

    def test_every_listener_hears(self, bells: Callable[[], Bell]) -> None:
        listeners = [self.listening(bells) for _ in range(3)]
        bells().ring()
        assert all(is_rung(bell, self.HEARD_S) for bell in listeners)

    def test_where_the_ledger_notifies_a_ring_adds_nothing(
        self, bells: Callable[[], Bell], database: str
    ) -> None:
        bell = self.listening(bells)
        with closing(NotifyBell(database, sends=False)) as ringer:
            ringer.ring()
        assert not is_rung(bell, self.QUIET_S)

    def test_the_ledger_rings_when_tasks_become_claimable(self, postgres: Databases) -> None:
        """By itself, in its own transaction; and not for what makes nothing claimable."""
        url = postgres.fresh()
        with (
            closing(PostgresLedger(url)) as ledger,
            closing(NotifyBell(url, sends=False)) as bell,
        ):
            assert is_rung(bell, self.HEARD_S)
            bell.hear()
            made = jobs.submit(ledger, jobs.line_job())
            assert is_rung(bell, self.HEARD_S), "not at a submission"
            bell.hear()
            (lease,) = ledger.claim("worker", 1, lease_ttl_s=60)
            assert not is_rung(bell, self.QUIET_S), "at a claim"
            ledger.complete([jobs.completion(ledger, made, lease)])
            assert is_rung(bell, self.HEARD_S), "not at a completion that unblocks a task"

    def test_probes_wake_nobody(self, database: str) -> None:
        with closing(NotifyBell(database, probe_every_s=0.02)) as bell:
            assert is_rung(bell, HEARD_S)
            bell.hear()
            assert not is_rung(bell, 0.5)
            assert bell.failures == 0


class TestRedisBell(BellContract):
    @pytest.fixture
    def open_bell(self, valkey: str) -> Callable[[], Bell]:
        fleet = os.urandom(8).hex()
        return lambda: RedisBell(valkey, fleet=fleet)

    def test_one_idle_listener_hears(self, bells: Callable[[], Bell]) -> None:
        """The others are not woken for nothing."""
        listeners = [self.listening(bells) for _ in range(4)]
        ringer = bells()
        for _ in range(6):
            ringer.ring()
            (woken,) = select.select(listeners, [], [], self.HEARD_S)[0]
            assert select.select(listeners, [], [], self.QUIET_S)[0] == [woken]
            woken.hear()

    def test_a_busy_listener_takes_one_hint_and_leaves_the_next_to_others(
        self, bells: Callable[[], Bell]
    ) -> None:
        listeners = [self.listening(bells) for _ in range(2)]
        ringer = bells()
        for busy in (1, 2):
            ringer.ring()
            until_rung(listeners, busy)

    def test_each_fleet_hears(self, bells: Callable[[], Bell], valkey: str) -> None:
        own = self.listening(bells)
        with closing(RedisBell(valkey, fleet=os.urandom(8).hex())) as other:
            assert is_rung(other, self.HEARD_S)
            other.hear()
            bells().ring()
            assert is_rung(own, self.HEARD_S)
            assert is_rung(other, self.HEARD_S)

    def test_a_hint_is_in_the_stream_of_its_priority(
        self, bells: Callable[[], Bell], valkey: str
    ) -> None:
        with redis.Redis.from_url(valkey) as server:
            for priority, stream in STREAMS.items():
                before = last_id(server, stream)
                bell = bells()
                bell.ring(priority * 7)
                bell.close()
                assert last_id(server, stream) != before

    def test_the_streams_stay_short(self, bells: Callable[[], Bell], valkey: str) -> None:
        with redis.Redis.from_url(valkey) as server:
            for _ in range(3000):
                server.xadd(STREAMS[0], {"hint": ""})
            bell = bells()
            bell.ring()
            bell.close()
            assert int(server.xlen(STREAMS[0])) < 1200

    def test_nothing_of_a_closed_listener_stays(
        self, bells: Callable[[], Bell], valkey: str
    ) -> None:
        bell = bells()
        assert isinstance(bell, RedisBell)
        assert is_rung(bell, self.HEARD_S)
        bell.hear()
        with redis.Redis.from_url(valkey) as server:
            bells().ring()
            assert is_rung(bell, self.HEARD_S)
            bell.hear()
            until_rung([bell], 0)
            bell.close()
            groups = server.xinfo_groups(STREAMS[0])
            (mine,) = [one for one in groups if one["name"].decode() == bell.fleet]
            assert (mine["consumers"], mine["pending"]) == (0, 0)


def last_id(server: redis.Redis, stream: str) -> object:
    return server.xrevrange(stream, count=1)


def until_rung(bells: list[Bell], count: int) -> None:
    """Wait until so many are rung."""
    poll = select.poll()
    for bell in bells:
        poll.register(bell, select.POLLIN)
    for _ in range(1000):
        if len(poll.poll(0)) == count:
            return
        select.select([], [], [], HEARD_S / 1000)
    raise AssertionError(f"expected {count} rung, found {len(poll.poll(0))}")


class Mute(LocalBell):
    """Rings are lost."""

    def ring(self, priority: int = 0) -> None:
        if not hasattr(self, "_began"):
            self._began = True
            super().ring()


class Endless(LocalBell):
    """Hints stay after they were heard."""

    def hear(self) -> None:
        return


class Silent(LocalBell):
    """It does not say when it begins to listen."""

    def __init__(self) -> None:
        super().__init__(rung=False)


class Fussy(LocalBell):
    """It fails when it is rung at the wrong time."""

    def ring(self, priority: int = 0) -> None:
        self.fileno()
        super().ring()


class Reckless(LocalBell):
    """It goes on using its descriptors."""

    def ring(self, priority: int = 0) -> None:
        os.write(self._write, b"\0")
        self.rung = True

    def hear(self) -> None:
        os.set_blocking(self._read, False)
        while select.select([self._read], [], [], 0)[0]:
            os.read(self._read, 1)


CANARIES: dict[type[LocalBell], set[str]] = {
    LocalBell: set(),
    Mute: {"a_ring_is_heard", "who_waits_is_woken", "any_thread_may_ring"},
    Endless: {"it_says_once_that_it_listens"},
    Silent: {"it_says_once_that_it_listens"},
    Fussy: {"a_closed_bell_takes_everything_and_does_nothing"},
    Reckless: {"it_uses_no_descriptor_after_its_end"},
}


class Hasty(BellContract):
    ALONE = True
    HEARD_S = 0.05
    QUIET_S = 0.01


@pytest.mark.parametrize("broken", CANARIES, ids=lambda bell: bell.__name__)
def test_the_suite_catches_a_broken_bell(broken: type[LocalBell]) -> None:
    failed = failures(broken)
    assert CANARIES[broken] <= failed
    assert CANARIES[broken] or not failed


def failures(make: Callable[[], Bell]) -> set[str]:
    failed: set[str] = set()
    for name, test in inspect.getmembers(Hasty, inspect.isfunction):
        if not name.startswith("test_"):
            continue
        with ExitStack() as stack:
            open_bell = one_at_a_time(make)
            given = {"self": Hasty(), "bells": open_bell, "open_bell": open_bell}
            given |= {"priority": 1, "used": "heard"}
            wants = inspect.signature(test).parameters
            try:
                test(**{parameter: given[parameter] for parameter in wants})
            except pytest.skip.Exception:
                pass
            except (Exception, pytest.fail.Exception):
                failed.add(name.removeprefix("test_"))
            finally:
                stack.callback(open_bell().close)
    return failed


POSTGRES = "postgresql://me:secret@db:5432/fleet"
REDIS = "redis://:secret@cache:6379/0"


@pytest.mark.parametrize(
    ("bells", "ledger", "expected"),
    [
        ("auto", None, []),
        ("auto", "fleet.sqlite", []),
        ("auto", POSTGRES, [NotifyBell]),
        ("auto", POSTGRES.replace("postgresql", "postgres"), [NotifyBell]),
        ("database", POSTGRES, [NotifyBell]),
        ("redis", POSTGRES, [RedisBell]),
        ("redis", "fleet.sqlite", [RedisBell]),
        ("hybrid", POSTGRES, [NotifyBell, RedisBell]),
        ("off", POSTGRES, []),
    ],
)
def test_the_settings_choose_the_bells(bells: str, ledger: str | None, expected: list) -> None:
    settings = Settings.model_validate({"bells": bells, "ledger": ledger, "redis_url": REDIS})
    opened = open_bells(settings)  # nothing of this is reachable, and it starts all the same
    assert [type(bell) for bell in opened] == expected
    for bell in opened:
        bell.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bells": "database"}, "bells is database, and the ledger is not in PostgreSQL"),
        ({"bells": "hybrid", "ledger": "a.sqlite", "redis_url": REDIS}, "not in PostgreSQL"),
        ({"bells": "redis", "ledger": POSTGRES}, "redis_url does not say where"),
        ({"bells": "redis", "redis_url": "redis://:secret@cache:port/0"}, "no address"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        open_bells(Settings.model_validate(given))
    assert caught.value.remedy
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("extra", ["postgres", "redis"])
def test_a_missing_package_is_named(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for module in ("notify", "redis"):
        monkeypatch.setattr(f"intermission.backends.bell.{module}.find_spec", lambda name: None)
    bells = {"postgres": "database", "redis": "redis"}[extra]
    with pytest.raises(EnvironmentFault, match=rf"intermission\[{extra}\]"):
        open_bells(
            Settings.model_validate({"bells": bells, "ledger": POSTGRES, "redis_url": REDIS})
        )


def test_a_fleet_has_one_name_whoever_logs_in(tmp_path: Path) -> None:
    def named(ledger: str) -> str:
        return fleet_name(Settings.model_validate({"ledger": ledger}))

    assert named(POSTGRES) == named("postgresql://other:word@db:5432/fleet?sslmode=require")
    assert named(POSTGRES) != named("postgresql://db:5432/another")
    assert named(str(tmp_path / "a" / ".." / "l.sqlite")) == named(str(tmp_path / "l.sqlite"))
