"""One contract over every registry of workers, and what its keys are worth."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from intermission.backends.registry.keys import mint, opens, prefix_of
from intermission.backends.registry.sqlite import SqliteRegistry
from intermission.errors import LedgerError, LedgerTooNew
from intermission.ports.registry import KeyRow, Registry, WorkerRow
from servers.postgres import Databases

Open = Callable[[], Registry]


def worker(id: str = "box-1", registered_ms: int = 1000) -> WorkerRow:
    return WorkerRow(
        id=id,
        name="box",
        can=("gpu", "großes Bild"),
        metadata={"cores": 8, "note": "it's \\ here", "more": [None, True]},
        version="0.1.0",
        registered_ms=registered_ms,
        lease_secret=bytes(range(32)),
    )


class RegistryContract:
    def test_what_is_registered_is_found_by_its_key(self, open_registry: Open) -> None:
        registry = open_registry()
        _, key = mint(expires_ms=5000)
        assert registry.find(key.prefix) is None
        registry.register(worker(), key)
        assert registry.find(key.prefix) == (worker(), key)
        assert open_registry().workers() == [worker()]

    def test_workers_are_listed_as_they_came(self, open_registry: Open) -> None:
        registry = open_registry()
        rows = [worker("c", 1), worker("a", 2), worker("b", 2)]
        for row in reversed(rows):
            registry.register(row, mint()[1])
        assert registry.workers() == rows

    def test_a_new_key_ends_the_old_ones(self, open_registry: Open) -> None:
        registry = open_registry()
        first, second, third = mint()[1], mint()[1], mint(expires_ms=9000)[1]
        registry.register(worker(), first)
        registry.register(worker("other"), other := mint()[1])
        assert registry.rotate("box-1", second, old_until_ms=2000)
        assert registry.find(first.prefix) == (worker(), KeyRow(*_ids(first), 2000))
        assert registry.find(second.prefix) == (worker(), second)
        assert registry.rotate("box-1", third, old_until_ms=3000)
        # An end that was set before is not put off.
        assert registry.find(first.prefix) == (worker(), KeyRow(*_ids(first), 2000))
        assert registry.find(second.prefix) == (worker(), KeyRow(*_ids(second), 3000))
        assert registry.find(third.prefix) == (worker(), third)
        assert registry.find(other.prefix) == (worker("other"), other)

    def test_nobody_gets_a_key_by_rotation(self, open_registry: Open) -> None:
        registry = open_registry()
        key = mint()[1]
        assert not registry.rotate("nobody", key, old_until_ms=0)
        assert registry.find(key.prefix) is None

    def test_a_worker_is_revoked_once_and_for_all(self, open_registry: Open) -> None:
        registry = open_registry()
        registry.register(worker(), key := mint()[1])
        assert registry.revoke("box-1", at_ms=7)
        assert registry.revoke("box-1", at_ms=8)
        assert not registry.revoke("nobody", at_ms=9)
        found = registry.find(key.prefix)
        assert found is not None
        assert found[0].revoked_ms == 7

    def test_a_heartbeat_is_kept(self, open_registry: Open) -> None:
        registry = open_registry()
        registry.register(worker(), mint()[1])
        registry.register(worker("other"), mint()[1])
        registry.seen("box-1", at_ms=50, slots=4, busy=3, version="0.1.7")
        heard, other = registry.workers()
        assert (heard.heard_ms, heard.slots, heard.busy, heard.version) == (50, 4, 3, "0.1.7")
        assert other == worker("other")

    def test_any_thread_may_ask(self, open_registry: Open) -> None:
        registry = open_registry()
        registry.register(worker(), key := mint()[1])
        found: list[object] = []

        def work(n: int) -> None:
            registry.seen("box-1", at_ms=n, slots=1, busy=0, version="0.1.0")
            found.append(registry.find(key.prefix))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(found) == 8
        assert None not in found


class TestSqliteRegistry(RegistryContract):
    @pytest.fixture
    def open_registry(self, tmp_path: Path) -> Iterator[Open]:
        opened: list[SqliteRegistry] = []

        def open_registry() -> SqliteRegistry:
            opened.append(SqliteRegistry(tmp_path / "deep" / "registry.sqlite"))
            return opened[-1]

        yield open_registry
        for one in opened:
            one.close()


class TestPostgresRegistry(RegistryContract):
    @pytest.fixture
    def open_registry(self, postgres: Databases) -> Open:
        from intermission.backends.registry.postgres import PostgresRegistry

        url = postgres.empty()
        return lambda: PostgresRegistry(url)


def test_a_newer_registry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    SqliteRegistry(path).close()
    newer = apsw.Connection(str(path))
    newer.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(LedgerTooNew, match="99"):
        SqliteRegistry(path)


def test_what_is_no_registry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    path.write_bytes(b"no database at all, but long enough to look like something" * 100)
    with pytest.raises(LedgerError, match=r"registry\.sqlite") as caught:
        SqliteRegistry(path)
    assert caught.value.remedy


def test_a_key_opens_its_own_row_alone() -> None:
    key, kept = mint()
    other, other_kept = mint()
    assert prefix_of(key) == kept.prefix
    assert key.split("_", 2)[2] not in repr(kept)
    assert opens(key, kept)
    assert not opens(other, kept)
    assert not opens(key, other_kept)
    assert len({mint()[0] for _ in range(100)}) == 100


@pytest.mark.parametrize("text", ["", "imw_", "imw_12345678_short", "xxx_12345678_" + "a" * 43])
def test_what_is_no_key_has_no_prefix(text: str) -> None:
    assert prefix_of(text) is None


def _ids(key: KeyRow) -> tuple[str, str]:
    return key.prefix, key.sha256
