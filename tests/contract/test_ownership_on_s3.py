"""Owning a workspace in a real bucket: the store's own clock and versions decide."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from intermission.backends.ledger.object_ledger import Ownership
from intermission.backends.ledger.object_ledger.lock import Lock
from intermission.backends.ledger.object_ledger.replica import LEDGER_NAME
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.store.objects import ObjectStore
from intermission.engine.workspace import Workspace
from intermission.errors import LockLost, WorkspaceBusy
from intermission.ports.clock import SystemClock
from intermission.ports.store import Stat
from intermission.testing.jobs import job, step, submit
from servers.seaweed import S3Server

ROUNDS = 200


class Later(ObjectStore):
    """The same bucket some minutes later: whatever was silent since is stale."""

    def stat(self, key: str) -> Stat | None:
        found = super().stat(key)
        if found is None or not key.startswith("clock/"):
            return found
        return replace(found, modified_ms=found.modified_ms + 300_000)


def test_of_two_that_steal_one_wins(s3: S3Server) -> None:
    url = s3.fresh_url()
    stores = {name: Later(url, options=s3.options) for name in "ab"}
    for turn in range(ROUNDS):
        # Not stale by its age, which would take seconds to come, but by what `Later` sees.
        victim = Lock(stores["a"], "victim", SystemClock())
        victim.take()
        assert victim.generation == 2 * turn + 1
        locks = [Lock(store, name, SystemClock(), ttl_s=1e6) for name, store in stores.items()]
        start = threading.Barrier(2, timeout=30)

        def race(lock: Lock, start: threading.Barrier = start) -> bool:
            start.wait()
            try:
                lock.take()
            except WorkspaceBusy:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            won = list(pool.map(race, locks))
        assert sorted(won) == [False, True]
        winner = locks[won.index(True)]
        assert winner.generation == 2 * turn + 2
        winner.release()


def test_a_workspace_changes_hands(s3: S3Server, tmp_path: Path) -> None:
    url = s3.fresh_url()
    lost: list[Exception] = []

    def owner(machine: str, kind: type[ObjectStore] = ObjectStore) -> Ownership:
        cache = tmp_path / machine
        open_store = partial(kind, url, options=s3.options)
        place = Workspace(cache, open_store, None, partial(SqliteLedger, cache / LEDGER_NAME))
        return Ownership(place, machine, on_lost=lost.append, push_every_s=0.0)

    def add(owned: Ownership, key: str) -> list[str]:
        ledger = SqliteLedger(owned.ledger_path)
        submit(ledger, job(step("one"), key=key))
        keys = sorted(row.job.key for row in ledger.jobs())
        ledger.close()
        return keys

    with owner("first") as owned:
        add(owned, "a")
        with pytest.raises(WorkspaceBusy, match="first-"):
            owner("second").open()
    silent = owner("second")
    silent.open()
    assert add(silent, "b") == ["a", "b"]
    silent.push_if_due()
    add(silent, "never uploaded")
    thief = owner("third", Later)
    thief.open()
    with pytest.raises(LockLost):
        silent.push_if_due()
    with pytest.raises(LockLost):
        silent.lock.renew()
    with pytest.raises(LockLost):
        silent.close()
    assert add(thief, "c") == ["a", "b", "c"]
    thief.close()
    last = owner("first")
    last.open()
    assert (last.lock.generation, add(last, "d")) == (4, ["a", "b", "c", "d"])
    last.close()
    assert not lost
