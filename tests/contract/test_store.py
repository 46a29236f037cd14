"""The store contract over every backend, broken stores it must catch, and processes that race."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from intermission.backends.store.local import LocalStore
from intermission.backends.store.memory import MemoryStore
from intermission.errors import StoreError
from intermission.ports.store import Stat, Store
from intermission.testing.store import StoreContract


class TestLocalStore(StoreContract):
    def open_store(self, folder: Path) -> Store:
        return LocalStore(folder)


class TestMemoryStore(StoreContract):
    def open_store(self, folder: Path) -> Store:
        return MemoryStore()


class TestLocalStoreThroughALink(StoreContract):
    """The root itself may be a link, as when a workspace lies on another disk."""

    def open_store(self, folder: Path) -> Store:
        folder.with_name("elsewhere").mkdir()
        folder.symlink_to("elsewhere")
        return LocalStore(folder)


class Overwriting(MemoryStore):
    """Ignores create-only, as some S3 look-alikes do."""

    def create(self, key: str, data: bytes | Path) -> Stat:
        return self.replace(key, data)


class Unconditional(MemoryStore):
    """Ignores the version of a conditional replace."""

    def replace(self, key: str, data: bytes | Path, *, if_version: str | None = None) -> Stat:
        return super().replace(key, data)


class Unverified(MemoryStore):
    """Hands out whatever bytes there are."""

    def fetch(self, key: str, to: Path, *, size_bytes: int, sha256: str) -> Path:
        to.write_bytes(self.read(key))
        return to


class Unordered(MemoryStore):
    """Lists folder by folder, so that a-b comes after a/b."""

    def list(self, prefix: str) -> Iterator[Stat]:
        return iter(sorted(super().list(prefix), key=lambda found: found.key.split("/")))


CANARIES: dict[type[MemoryStore], set[str]] = {
    MemoryStore: set(),
    Overwriting: {
        "test_a_second_create_is_refused_and_the_first_stands",
        "test_a_second_create_of_the_same_bytes_is_refused",
        "test_of_many_creators_exactly_one_wins",
        "test_a_large_file_is_created_from_its_path",
        "test_the_self_test_passes_and_leaves_nothing",
    },
    Unconditional: {
        "test_replace_if_version_takes_only_that_version",
        "test_replace_if_version_refuses_a_missing_object",
    },
    Unverified: {"test_fetch_refuses_altered_truncated_extended_and_missing_bytes"},
    Unordered: {"test_list_is_in_the_byte_order_of_whole_keys"},
}


@pytest.mark.parametrize("broken", CANARIES)
def test_the_suite_catches_a_broken_store(broken: type[MemoryStore], tmp_path: Path) -> None:
    """Each canary fails the tests that name its fault; the store they derive from fails none.

    A lost update needs an unlucky schedule, so that test is not counted on.
    """
    failed = _failures(broken, tmp_path) - {"test_no_update_by_version_is_lost"}
    assert failed == CANARIES[broken]


def _failures(make: Callable[[], Store], tmp_path: Path) -> set[str]:
    failed: set[str] = set()
    for name, test in inspect.getmembers(StoreContract, inspect.isfunction):
        wants = inspect.signature(test).parameters
        if not name.startswith("test_") or not set(wants) <= {"self", "store", "tmp_path"}:
            continue
        given = {"self": StoreContract(), "store": make(), "tmp_path": tmp_path}
        try:
            test(**{parameter: given[parameter] for parameter in wants})
        except (Exception, pytest.fail.Exception):
            failed.add(name)
    return failed


def test_the_self_test_refuses_a_store_that_overwrites() -> None:
    store = Overwriting()
    with pytest.raises(StoreError, match="refuse a second create") as caught:
        store.self_test()
    assert caught.value.remedy
    assert list(store.list("")) == []


RACER = """
import sys
from pathlib import Path
from intermission.backends.store.local import LocalStore
from intermission.errors import AlreadyExists
root, me, keys = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = LocalStore(root)
print("ready", flush=True)
sys.stdin.readline()
won = []
for n in range(keys):
    try:
        store.create(f"race/{n % 7}/{n}", (me * 3000).encode())
        won.append(n)
    except AlreadyExists:
        pass
print(won)
"""

COUNTER = """
import sys
from pathlib import Path
from intermission.backends.store.local import LocalStore
from intermission.errors import AlreadyExists
store = LocalStore(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
added = 0
while added < int(sys.argv[3]):
    version, count = store.stat("counter").version, int(store.read("counter"))
    try:
        store.replace("counter", b"%d" % (count + 1), if_version=version)
        added += 1
    except AlreadyExists:
        pass
print(added)
"""


def _race(script: str, root: Path, processes: int, turns: int) -> list[str]:
    """Run a script in several processes, let them go together, and give what each prints."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", script, str(root), str(n), str(turns)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                )
            )
            for n in range(processes)
        ]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        printed = [child.communicate(timeout=180)[0] for child in children]
    assert [child.returncode for child in children] == [0] * processes
    return printed


def test_of_many_processes_exactly_one_wins_each_key(tmp_path: Path) -> None:
    won = [json.loads(text) for text in _race(RACER, tmp_path / "store", 8, 50)]
    winners = {key: me for me, keys in enumerate(won) for key in keys}
    assert sorted(key for keys in won for key in keys) == list(range(50))
    store = LocalStore(tmp_path / "store")
    for key, me in winners.items():
        assert store.read(f"race/{key % 7}/{key}") == (str(me) * 3000).encode()
    assert len(list(store.list(""))) == 50
    assert list((tmp_path / "store" / ".tmp").iterdir()) == []


def test_no_update_by_version_is_lost_between_processes(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.create("counter", b"0")
    assert _race(COUNTER, tmp_path / "store", 4, 25) == ["25\n"] * 4
    assert store.read("counter") == b"100"
