"""Whole copies of a ledger that is in use, and the cheap question whether one is due.

Made through SQLite's backup API: a copy of the file alone would lack what is in its WAL. It
reads the ledger and never writes to it.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from intermission.backends.ledger.sqlite.connection import connect, translated
from intermission.errors import LedgerCorrupt, LedgerError


class Snapshots:
    """One ledger file, as the maker of its copies sees it. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open a ledger, or make an empty one. Raises `LedgerCorrupt` unless it is sound."""
        self._path = path
        if path.exists():
            _check(path)
        try:
            self._db: Any = connect(path)
        except LedgerError as e:
            # The pages are sound and yet a table is missing: no other program's concern.
            if isinstance(e.__cause__, apsw.SQLError):
                raise LedgerCorrupt(f"{path} is not a whole ledger ({e.__cause__}).") from e
            raise

    def close(self) -> None:
        self._db.close()

    def revision(self) -> int:
        """A number that is another one after any commit by anybody else than this object."""
        with translated(self._path):
            return self._db.execute("PRAGMA data_version").fetchall()[0][0]

    def save(self, to: Path, stamp: str) -> None:
        """A sound copy as of now in one file of its own; `stamp` makes its bytes unique."""
        with translated(to), closing(_backup(self._db, to)) as copy:
            copy.execute(
                "INSERT INTO meta VALUES ('copy', ?) "
                "ON CONFLICT DO UPDATE SET value = excluded.value",
                (stamp,),
            )
        _check(to)


def copy_ledger(path: Path, to: Path) -> None:
    """Copy a ledger that another process may be using; nothing beside it is touched."""
    with translated(path), closing(apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)) as db:
        _backup(db, to).close()


def _backup(db: Any, to: Path) -> Any:
    """A connection to a copy as of now, in one file."""
    copy: Any = apsw.Connection(str(to))
    try:
        copy.execute("PRAGMA synchronous=OFF").fetchall()  # it is thrown away after its use
        # In one step, so that no commit in between can make it start again.
        with copy.backup("main", db, "main") as backup:
            backup.step(-1)
        copy.execute("PRAGMA journal_mode=DELETE").fetchall()
    except BaseException:
        copy.close()
        raise
    return copy


def _check(path: Path) -> None:
    with translated(path):
        db: Any = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            found = db.execute("PRAGMA quick_check(1)").fetchall()
        finally:
            db.close()
    if found != [("ok",)]:
        raise LedgerCorrupt(
            f"{path} is damaged ({found[0][0]}).",
            remedy="Finished tasks are safe in their receipts: a new ledger is made from them.",
        )
