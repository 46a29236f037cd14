"""Owning a workspace in an object store for the length of a run: its lock and its ledger.

Three threads beside the work, each with one duty, so that none can hold up another: one
renews the lock, one uploads the ledger, and one, which never waits for the store, watches the
deadline by which the work must have ended. Whatever ends ownership is told once, at once, and
raised by `check` in the thread that does the work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from intermission.backends.ledger.object_ledger.lock import LOCK_KEY, LOCK_TTL_S, Lock
from intermission.backends.ledger.object_ledger.replica import LedgerCopy
from intermission.backends.work_source.worker_locks import alive, bury, dead
from intermission.engine.workspace import Workspace
from intermission.errors import LockLost, StoreError
from intermission.ports.clock import Clock, SystemClock

TICK_S = 1.0
RENEW_EVERY_S = 15.0
PUSH_EVERY_S = 300.0
"""An upload is the whole file, and receipts tell what it lacks: others see it a little older."""


class Ownership:
    """`with Ownership(...) as owned:` this process is the workspace's only writer."""

    def __init__(
        self,
        workspace: Workspace,
        worker: str,
        *,
        on_lost: Callable[[Exception], None],
        clock: Clock | None = None,
        ttl_s: float = LOCK_TTL_S,
        renew_every_s: float = RENEW_EVERY_S,
        push_every_s: float = PUSH_EVERY_S,
    ) -> None:
        """`on_lost` is called by another thread: kill the work, whatever it is doing."""
        self._workspace = workspace
        self._clock = clock or SystemClock()
        self._on_lost = on_lost
        self._renew_every_s = renew_every_s
        self._push_every_s = push_every_s
        self._store = workspace.open_store()
        self.lock = Lock(self._store, worker, self._clock, ttl_s=ttl_s)
        self._copy = LedgerCopy(self._store, workspace.folder, self._renew)
        self._pushed_at_s = 0.0
        self._trouble: StoreError | None = None
        """Why the last renewal failed, if it did."""
        self._renewing = threading.Lock()
        self._pushing = threading.Lock()
        self._losing = threading.Lock()
        self._error: Exception | None = None
        self._stop = threading.Event()
        duties = (self.renew_if_due, self.watch, self.push_if_due)
        self._threads = [
            threading.Thread(target=self._repeat, args=(act,), name=act.__name__, daemon=True)
            for act in duties
        ]
        self._alive = ExitStack()

    @property
    def ledger_path(self) -> Path:
        """The working copy, for as long as this process is the owner."""
        return self._copy.path

    def open(self) -> None:
        """Take the lock and get the ledger; raises `WorkspaceBusy`. No thread runs yet."""
        self.lock.take(proven_dead=dead(self._workspace))
        try:
            # Under the lock's name, not the worker's, which announces itself for each job.
            self._alive.enter_context(alive(self._workspace, self.lock.owner))
            self._copy.open(f"{self.lock.owner}-{self.lock.generation}")
        except BaseException:
            self._leave()
            raise
        self._pushed_at_s = self._clock.monotonic_s()

    def start(self) -> None:
        """Renew and upload from here on, until `close`."""
        for thread in self._threads:
            thread.start()

    def close(self, reason: str | None = None) -> None:
        """Upload what is new and free the lock, also when the upload fails.

        Raises what ended ownership before, if anything did: then there is nothing to free.
        """
        try:
            self._push()  # while the lock is still being renewed: it may take long
        finally:
            self._stop.set()
            for thread in self._threads:
                if thread.is_alive():
                    thread.join()
            self._leave(reason)
        self.check()

    def check(self) -> None:
        """Raise here what ended ownership, so that the worker does not go on alone."""
        if self._error is not None:
            raise self._error

    def renew_if_due(self) -> None:
        if self._clock.monotonic_s() - self.lock.renewed_at_s < self._renew_every_s:
            return
        try:
            self._renew()
            self._trouble = None
        except StoreError as e:
            self._trouble = e  # asked again at the next tick; the deadline decides how often

    def push_if_due(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._pushed_at_s < self._push_every_s:
            return
        self._pushed_at_s = now_s
        with suppress(StoreError):  # tried again when next due, and in earnest at the end
            self._push()

    def watch(self) -> None:
        if self._clock.monotonic_s() < self.lock.deadline_s:
            return
        why = "no answer came." if self._trouble is None else self._trouble.message
        raise LockLost(
            f"{LOCK_KEY} of {self._store.uri} could not be renewed in time: {why}",
            remedy="Check the connection to the store and run again; progress is saved.",
        ) from self._trouble

    def _renew(self) -> None:
        with self._renewing:  # the thread that uploads asks as well
            self.lock.renew()

    def _push(self) -> None:
        with self._pushing:  # the end may come while an upload is under way
            if self._error is None and not self._stop.is_set():
                self._copy.push()

    def _repeat(self, act: Callable[[], None]) -> None:
        try:
            while not self._stop.wait(min(TICK_S, self._renew_every_s, self._push_every_s)):
                act()
        except Exception as e:
            self._lose(e)

    def _lose(self, error: Exception) -> None:
        with self._losing:
            if self._error is not None:
                return
            self._error = error
        self._on_lost(error)

    def _leave(self, reason: str | None = None) -> None:
        with self._alive:
            self._copy.close()
            if self._error is None:
                self.lock.release(reason)
        if self._error is None:
            bury(self._workspace, [self.lock.owner])  # it left nothing behind to be proven

    def __enter__(self) -> Ownership:
        self.open()
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        self.close(None if error is None else str(error))
