"""Opening a ledger file safely: pragmas that are asserted, migrations, errors that explain.

Owns the connection and its transactions. It knows nothing of jobs or tasks.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from ctypes import addressof, c_int
from pathlib import Path
from typing import Any

import apsw

from intermission.backends.ledger.sql.statements import for_sqlite, migrations, statements
from intermission.errors import LedgerCorrupt, LedgerError, LedgerTooNew, fault_from_os
from intermission.model import JOB_TRANSITIONS, TRANSITIONS

_PACKAGE = "intermission.backends.ledger.sqlite"
SQL = statements(_PACKAGE, for_sqlite)
APPLICATION_ID = 0x494E544D  # "INTM"
BUSY_TIMEOUT_MS = 5000
STATEMENTS = 400
"""All that a ledger ever prepares: one put out of the cache costs more to prepare than to run."""
OLDEST_SQLITE = (3, 51, 3)
"""Older libraries can corrupt a database when two writers meet a WAL reset."""
NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre"),
        *("virtiofs", "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.goofys", "fuse.mount-s3"),
        *("fuse.glusterfs", "fuse.gcsfuse", "fuse.blobfuse", "fuse.blobfuse2", "fuse.juicefs"),
        *("fuse.JuiceFS", "fuse.mountpoint-s3", "fuse.s3ql", "fuse.davfs2", "fuse.seaweedfs"),
    }
)

_REBUILD = (
    "Finished tasks are safe in their receipts: `intermission rebuild SOURCE` moves the file "
    "away and makes a new ledger from them."
)


def connect(path: Path) -> apsw.Connection:
    """An open, migrated connection; a new file becomes an empty ledger."""
    if tuple(int(n) for n in apsw.sqlite_lib_version().split(".")) < OLDEST_SQLITE:
        raise LedgerError(
            f"the SQLite library is {apsw.sqlite_lib_version()}; 3.51.3 or newer is needed.",
            remedy="Upgrade the apsw package.",
        )
    _refuse_network_file_system(path)
    with translated(path):
        connection = apsw.Connection(str(path), statementcachesize=STATEMENTS)
    try:
        with translated(path), _one_at_a_time(path.parent):
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            _migrate(connection, path)
            _pragma(connection, "journal_mode", "WAL", "wal")
            _pragma(connection, "synchronous", "FULL", 2)
            _pragma(connection, "foreign_keys", "ON", 1)
            _watch_changes(connection)
            _forget_other_boots(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _one_at_a_time(folder: Path) -> Generator[None, None, None]:
    """Opening changes the journal mode, and SQLite does not wait for its turn to do that."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _pragma(connection: apsw.Connection, name: str, value: str, expected: Any) -> None:
    connection.execute(f"PRAGMA {name}={value}").fetchall()
    found = connection.execute(f"PRAGMA {name}").fetchall()[0][0]
    if found != expected:
        raise LedgerError(
            f"the ledger needs PRAGMA {name}={value}, but this file system gave {found!r}.",
            remedy="Keep the workspace on a local disk.",
        )


def _migrate(connection: apsw.Connection, path: Path) -> None:
    versions = migrations(_PACKAGE)
    if _version(connection, path) == versions[-1][0]:
        return
    with transaction(connection, path):
        for version, sql in versions:
            if version > _version(connection, path):
                connection.execute(sql)
                connection.execute(f"PRAGMA user_version={version}")
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")


def _number(connection: apsw.Connection, sql: str) -> int:
    ((value,),) = connection.execute(sql).fetchall()
    assert isinstance(value, int)
    return value


def _version(connection: apsw.Connection, path: Path) -> int:
    """The schema version, once it is sure that this is a ledger this program understands."""
    application = _number(connection, "PRAGMA application_id")
    version = _number(connection, "PRAGMA user_version")
    tables = _number(connection, "SELECT count(*) FROM sqlite_schema")
    newest = migrations(_PACKAGE)[-1][0]
    if tables and application != APPLICATION_ID:
        raise LedgerCorrupt(
            f"{path} is a database, but not an Intermission ledger.", remedy=_REBUILD
        )
    if version > newest:
        raise LedgerTooNew(
            f"{path} has schema {version}, and this program knows up to {newest}.",
            remedy="A newer Intermission wrote it: upgrade this one.",
        )
    return version


def _watch_changes(connection: apsw.Connection) -> None:
    """Guard this connection's writes: an illegal transition is refused, any other leaves an event.

    By triggers of its own, with the model's table written out: one for each change of a task,
    because every trigger that is asked costs a task without a receipt a thirtieth of its time.
    """
    _pragma(connection, "temp_store", "MEMORY", 2)
    for name, legal in (("task", TRANSITIONS), ("job", JOB_TRANSITIONS)):
        cases = " ".join(
            f"WHEN '{was}' THEN " + (" OR ".join(f"new.state = '{now}'" for now in after) or "0")
            for was, after in legal.items()
        )
        illegal = f"NOT CASE old.state {cases} ELSE 0 END"
        connection.execute(SQL[f"watch_{name}s"].replace(":illegal", illegal))


def _forget_other_boots(connection: apsw.Connection, path: Path) -> None:
    """Leases and delays are in this boot's monotonic time; those of another boot are over."""
    boot = boot_id()
    known = connection.execute("SELECT value FROM meta WHERE name = 'boot'").fetchall()
    if known and known[0][0] == boot:
        return
    with transaction(connection, path):
        connection.execute(
            "UPDATE tasks SET lease_s = 0 WHERE state = 'leased' OR state = 'running'"
        )
        connection.execute("UPDATE tasks SET ready_s = 0 WHERE state = 'retrying'")
        connection.execute("UPDATE ready SET parked = 0 WHERE parked = 1")
        connection.execute(
            "INSERT INTO meta VALUES ('boot', ?) ON CONFLICT DO UPDATE SET value = excluded.value",
            (boot,),
        )


def boot_id() -> str:
    """A name for the time since this machine started."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return sys.platform


def _refuse_network_file_system(path: Path) -> None:
    kind = file_system_of(path.parent)
    if kind in NETWORK_FILE_SYSTEMS:
        raise LedgerError(
            f"{path} is on a network file system ({kind}), where SQLite cannot lock safely.",
            remedy="Copy the source to a local disk, or use an object store.",
        )


def file_system_of(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system a folder is on; empty where the system does not tell."""
    try:
        lines = mountinfo.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    target = folder.resolve()
    for line in lines:
        left, _, right = line.partition(" - ")
        # The kernel writes blanks and backslashes in octal, and every other byte as it is.
        mount = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), left.split()[4]))
        if target.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), right.split()[0]
    return kind


@contextmanager
def transaction(connection: apsw.Connection, path: Path) -> Generator[None, None, None]:
    """BEGIN IMMEDIATE ... COMMIT, or nothing at all."""
    with translated(path):
        if _has_moved(connection):
            raise LedgerError(
                f"the ledger {path} was removed or replaced while it was in use.",
                remedy="Finished tasks are safe in their receipts: run the same command again.",
            )
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _has_moved(connection: apsw.Connection) -> bool:
    """Whether the file under the ledger's name is no longer the one that is open.

    SQLite would go on with a file that has no name any more, while whoever opens the name
    finds another ledger, in which no task is known.
    """
    moved = c_int()
    connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, addressof(moved))
    return bool(moved.value)


@contextmanager
def translated(path: Path) -> Generator[None, None, None]:
    """Driver errors as ledger errors, each with what to do about it."""
    try:
        yield
    except apsw.BusyError as e:
        raise LedgerError(
            f"the ledger {path} stayed locked for {BUSY_TIMEOUT_MS // 1000} s.",
            remedy="Another process holds it; run the same command again.",
        ) from e
    except (apsw.NotADBError, apsw.CorruptError) as e:
        raise LedgerCorrupt(f"{path} is damaged or not a ledger ({e}).", remedy=_REBUILD) from e
    except apsw.FullError as e:
        raise LedgerError(
            f"the disk that holds the ledger {path} is full.",
            remedy="Free some space and run the same command again; progress is saved.",
        ) from e
    except (apsw.ReadOnlyError, apsw.PermissionsError, apsw.CantOpenError) as e:
        raise LedgerError(
            f"the ledger {path} cannot be opened for writing ({e}).",
            remedy="Check the folder's permissions and that the disk is not read-only.",
        ) from e
    except apsw.IOError as e:
        raise LedgerError(
            f"reading or writing the ledger {path} failed ({e}).",
            remedy="Check the disk, then run the same command again; progress is saved.",
        ) from e
    except apsw.Error as e:
        raise LedgerError(f"the ledger {path} refused an operation ({e}).") from e
    except OSError as e:
        raise fault_from_os(e, "opening the ledger", LedgerError, where=path) from e
