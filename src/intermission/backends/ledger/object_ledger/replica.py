"""The ledger's working copy: fetched when a run begins, uploaded while it changes.

Owns `ledger.sqlite` in the store and the file of that name on this machine. The version of
the object is the fence: an owner's first act is to write it anew, and every later write is
conditional on its own last one. So once a new owner has opened its copy, no earlier one can
upload again, whatever it believes of its lock. Losing an upload loses nothing, because what
is finished is in the receipts; this module never decides what is finished.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from intermission.backends.ledger.sqlite.snapshot import Snapshots
from intermission.errors import (
    AlreadyExists,
    LedgerCorrupt,
    LedgerError,
    LockLost,
    NotFound,
    StoreError,
    fault_from_os,
)
from intermission.ports.store import Stat, Store
from intermission.telemetry import reached

LEDGER_NAME = "ledger.sqlite"
_TRIES = 5


class LedgerCopy:
    """One workspace's ledger on this machine. Used by one thread at a time."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.path = folder / LEDGER_NAME
        self._store = store
        self._note = folder / f"{LEDGER_NAME}.uploaded"
        """Names the version in the store that this machine's file descends from."""
        self._snapshots: Snapshots | None = None
        self._version: str | None = None
        self._revision: int | None = None
        self._stamp = ""
        self._saved = 0
        self._unsure: set[str] = set()
        """Hashes of uploads whose outcome nobody knows."""

    def open(self, stamp: str, confirm: Callable[[], None]) -> None:
        """Get the newest ledger and fence off every earlier owner.

        This machine's file is kept if it descends from what is in the store; else the store's
        is taken. One that is damaged is put aside, and an empty one takes its place. `stamp`
        is unique to this owner; `confirm` raises if the lock is somebody else's by now.
        """
        self._stamp = stamp
        with self._faults("opening the ledger's copy"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for left in self.path.parent.glob(f".{LEDGER_NAME}.*"):
                left.unlink(missing_ok=True)
            for _ in range(_TRIES):
                found = self._store.stat(LEDGER_NAME)
                self._version = None if found is None else found.version
                self._snapshots = self._kept() or self._fetched()
                # Asked after the version was read: if the lock is still ours now, whoever
                # takes it later finds what we write, and whoever took it before is found out.
                confirm()
                try:
                    self._upload(self._snapshots)
                except AlreadyExists:
                    self.close()  # a late upload of the owner before: start from that
                else:
                    return
        raise StoreError(
            f"{LEDGER_NAME} of {self._store.uri} changed {_TRIES} times while it was opened.",
            remedy="Something else writes there: find it, stop it and run again.",
        )

    def push(self) -> bool:
        """Upload the ledger if it changed since the last upload; whether it had.

        Raises `LockLost` when somebody else has uploaded: they are the owner now. After a
        `StoreError` push again: an upload that arrived all the same is recognized.
        """
        if self._snapshots is None:
            raise LedgerError("the ledger's copy is not open.", remedy="Open it first.")
        if self._snapshots.revision() == self._revision:
            return False
        with self._faults("uploading the ledger"):
            for _ in range(_TRIES):
                try:
                    self._upload(self._snapshots)
                except AlreadyExists:
                    if not self._own_upload_arrived():
                        break
                else:
                    return True
        raise LockLost(
            f"expected {LEDGER_NAME} of {self._store.uri} as this process last wrote it, found "
            "another or none.",
            remedy="If another machine owns this workspace by now, it continues from the "
            "receipts; else run again. Nothing is lost.",
        )

    def close(self) -> None:
        if self._snapshots is not None:
            self._snapshots.close()
            self._snapshots = None

    def _upload(self, snapshots: Snapshots) -> None:
        self._saved += 1
        copy = self._temporary()
        try:
            revision = snapshots.revision()  # before the copy: what comes after is for the next
            reached("before-ledger-backup")
            snapshots.save(copy, f"{self._stamp}-{self._saved}")
            reached("after-ledger-backup")
            stat = self._write(copy)
            reached("after-ledger-upload")
        finally:
            copy.unlink(missing_ok=True)
        self._version, self._revision = stat.version, revision
        self._unsure.clear()
        self._write_note(stat.version)

    def _write(self, copy: Path) -> Stat:
        try:
            if self._version is None:
                return self._store.create(LEDGER_NAME, copy)
            return self._store.replace(LEDGER_NAME, copy, if_version=self._version)
        except StoreError:
            self._unsure.add(hashlib.sha256(copy.read_bytes()).hexdigest())
            raise

    def _own_upload_arrived(self) -> bool:
        """Whether what is in the store now is an upload of ours that was thought lost."""
        found = self._store.stat(LEDGER_NAME) if self._unsure else None
        if found is None:
            return False
        try:
            data = self._store.read(LEDGER_NAME)
        except NotFound:
            return False
        # Should it be newer than the version just read, the next write by it is refused.
        self._version = found.version
        return hashlib.sha256(data).hexdigest() in self._unsure

    def _kept(self) -> Snapshots | None:
        """This machine's file, if nobody else has written since it was last uploaded."""
        if self._version is None or self._read_note() != self._version or not self.path.exists():
            return None
        try:
            return Snapshots(self.path)
        except LedgerCorrupt:
            self._put_aside()
            return None

    def _fetched(self) -> Snapshots:
        """The store's ledger in place of this machine's; an empty one if it is of no use."""
        self._note.unlink(missing_ok=True)  # first: from here on the file descends from nothing
        self._remove()
        if self._version is not None:
            try:
                self._install(self._store.read(LEDGER_NAME))
                return Snapshots(self.path)
            except NotFound:
                self._remove()
            except LedgerCorrupt:
                self._put_aside()
        return Snapshots(self.path)

    def _install(self, data: bytes) -> None:
        arriving = self._temporary()
        with arriving.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        arriving.replace(self.path)

    def _remove(self) -> None:
        """The log goes with its file: SQLite would play it into whatever lies beside it."""
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def _put_aside(self) -> None:
        """Keep the last damaged ledger for whoever wants to know what happened to it."""
        if self.path.exists():
            self.path.replace(self.path.with_name(f"{LEDGER_NAME}.damaged"))
        self._remove()

    def _temporary(self) -> Path:
        return self.path.with_name(f".{LEDGER_NAME}.{uuid4().hex}")

    def _read_note(self) -> str | None:
        try:
            return json.loads(self._note.read_bytes())["version"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None  # then the store's ledger is fetched, which is never wrong

    def _write_note(self, version: str) -> None:
        arriving = self._temporary()
        arriving.write_text(json.dumps({"version": version}))
        arriving.replace(self._note)

    @contextmanager
    def _faults(self, doing: str) -> Generator[None, None, None]:
        try:
            yield
        except OSError as e:
            raise fault_from_os(e, doing, LedgerError, where=self.path.parent) from e
