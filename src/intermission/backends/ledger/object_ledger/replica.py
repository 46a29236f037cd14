"""The ledger's working copy: fetched when a run begins, uploaded now and then and at the end.

Owns `ledger.sqlite` in the store and the file of that name on this machine. Every upload looks at
the version that is there, makes sure that the lock is still ours, and replaces that version alone;
an owner's first act is such an upload. So once a new owner has opened its copy, no earlier one
can upload again, whatever it believes of its lock. Losing an upload loses nothing, because what
is finished is in the receipts; this module never decides what is finished.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from intermission.backends.ledger.object_ledger.lock import TRIES, keeps_changing
from intermission.backends.ledger.sqlite.snapshot import Snapshots
from intermission.backends.store.fsync import fill, open_new
from intermission.errors import AlreadyExists, LedgerCorrupt, LedgerError, NotFound, os_faults
from intermission.ports.store import Store
from intermission.telemetry import reached

LEDGER_NAME = "ledger.sqlite"


class LedgerCopy:
    """One workspace's ledger on this machine. Used by one thread at a time."""

    def __init__(self, store: Store, folder: Path, confirm: Callable[[], None]) -> None:
        """`confirm` raises unless the lock is still ours."""
        self.path = folder / LEDGER_NAME
        self._store = store
        self._confirm = confirm
        self._stamp = ""
        self._note = folder / f"{LEDGER_NAME}.uploaded"
        """Names the version in the store that this machine's file descends from."""
        self._snapshots: Snapshots | None = None
        self._revision: int | None = None
        """What the last upload held."""
        self._saved = 0

    def open(self, stamp: str) -> None:
        """Get the newest ledger and fence off every earlier owner.

        This machine's file is kept if it descends from what is in the store; else the store's
        is taken. One that is damaged is put aside, and an empty one takes its place. `stamp`
        is unique to this owner.
        """
        self._stamp = stamp
        with os_faults("opening the ledger's copy", LedgerError, where=self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for left in self.path.parent.glob(f".{LEDGER_NAME}.*"):
                left.unlink(missing_ok=True)
            for _ in range(TRIES):
                version = self._stored()
                self._snapshots = self._kept(version) or self._fetched(version)
                if self._upload(self._snapshots, version):
                    return
                self.close()  # a late upload of the owner before: start from that
        raise keeps_changing(LEDGER_NAME, self._store)

    def push(self) -> bool:
        """Upload the ledger if it changed since the last upload; whether it had.

        Raises `LockLost` when another machine is the owner. After a `StoreError` push again: an
        upload that arrived all the same is as good as the version before it.
        """
        if self._snapshots is None:
            raise LedgerError("the ledger's copy is not open.", remedy="Open it first.")
        if self._snapshots.revision() == self._revision:
            return False
        with os_faults("uploading the ledger", LedgerError, where=self.path.parent):
            for _ in range(TRIES):
                if self._upload(self._snapshots, self._stored()):
                    return True
        raise keeps_changing(LEDGER_NAME, self._store)

    def close(self) -> None:
        if self._snapshots is not None:
            self._snapshots.close()
            self._snapshots = None

    def _stored(self) -> str | None:
        found = self._store.stat(LEDGER_NAME)
        return None if found is None else found.version

    def _upload(self, snapshots: Snapshots, version: str | None) -> bool:
        """Replace this version by a copy of the ledger as it is now; False if it is gone."""
        # Asked after the version was read: if the lock is still ours now, whoever takes it
        # later finds what we write, and whoever took it before is found out.
        self._confirm()
        self._saved += 1
        copy = self._temporary()
        try:
            revision = snapshots.revision()  # before the copy: what comes after is for the next
            reached("before-ledger-backup")
            snapshots.save(copy, f"{self._stamp}-{self._saved}")
            reached("after-ledger-backup")
            if version is None:
                stat = self._store.create(LEDGER_NAME, copy)
            else:
                stat = self._store.replace(LEDGER_NAME, copy, if_version=version)
            reached("after-ledger-upload")
        except AlreadyExists:
            return False
        finally:
            copy.unlink(missing_ok=True)
        self._revision = revision
        self._install(self._note, stat.version.encode())
        return True

    def _kept(self, version: str | None) -> Snapshots | None:
        """This machine's file, if nobody else has written since it was last uploaded."""
        known = self._note.read_bytes() if self._note.exists() else b""
        if version is None or known != version.encode() or not self.path.exists():
            return None
        return self._opened()

    def _fetched(self, version: str | None) -> Snapshots:
        """The store's ledger in place of this machine's; an empty one if it is of no use."""
        self._note.unlink(missing_ok=True)  # first: from here on the file descends from nothing
        self._remove()
        if version is not None:
            with suppress(NotFound):
                self._install(self.path, self._store.read(LEDGER_NAME))
        return self._opened() or Snapshots(self.path)

    def _opened(self) -> Snapshots | None:
        """This machine's file; one that is damaged is kept aside for whoever looks into it."""
        try:
            return Snapshots(self.path)
        except LedgerCorrupt:
            self.path.replace(self.path.with_name(f"{LEDGER_NAME}.damaged"))
            self._remove()
            return None

    def _install(self, path: Path, data: bytes) -> None:
        arriving = str(self._temporary())
        fill(open_new(arriving), arriving, data)
        Path(arriving).replace(path)

    def _remove(self) -> None:
        """The log goes with its file: SQLite would play it into whatever lies beside it."""
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def _temporary(self) -> Path:
        return self.path.with_name(f".{LEDGER_NAME}.{uuid4().hex}")
