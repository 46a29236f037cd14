"""Files and folders that survive a power loss: what is synced, and in which order.

This module makes the write-side system calls of the local store. It knows paths and nothing
of keys, and it lets every OSError through: the store says once what they mean. A failed sync
is never tried again, because the kernel may have dropped the pages it could not write, and
the second answer would be a lie.
"""

# The calls themselves are the subject here.
# ruff: noqa: PTH102, PTH103, PTH106, PTH108, PTH112, PTH116, PTH120

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from intermission.errors import StoreError

T = TypeVar("T")

_BLOCK_BYTES = 1024 * 1024
_PATIENCE = 50
_FOLDERS_MAX = 10_000

_named: dict[str, int] = {}
"""The inodes of folders at and above roots whose names this process has made durable."""


def open_new(path: str) -> int:
    """The descriptor of a file that did not exist; `fill` it."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def fill(fd: int, path: str, data: bytes | Path) -> None:
    """Write, sync and close a new file; on any error it is removed."""
    try:
        try:
            if isinstance(data, Path):
                _copy(data, fd)
            else:
                _write_all(fd, memoryview(data))
            # The kernel's own stamps are a timer tick apart, and two versions of an object
            # may be made within one, even under the same recycled inode number.
            now_ns = time.time_ns()
            os.utime(fd, ns=(now_ns, now_ns))
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        discard(path)
        raise


def discard(path: str) -> None:
    """Remove a temporary file. One that stays behind is no object, and is swept later."""
    with suppress(OSError):
        os.unlink(path)


def _copy(source: Path, fd: int) -> None:
    block = memoryview(bytearray(_BLOCK_BYTES))
    from_fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while count := os.readv(from_fd, [block]):
            _write_all(fd, block[:count])
    finally:
        os.close(from_fd)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        count = os.write(fd, data)
        if count == 0:
            raise OSError(errno.EIO, "a write accepted no bytes")
        data = data[count:]


def sync_file(path: str) -> None:
    """Make the bytes of a file that others wrote durable. Refuses to follow a link."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as e:
        # Some network file systems know no sync of a folder and keep its names by themselves.
        if e.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


class Folders:
    """The folders below a store's root: made when a file needs them, durable before it is.

    Its methods take the path of a file and see to the folders above it. A folder counts as
    durable once this process has synced every folder above it. Whoever made it may have been
    killed before doing so, hence its mere existence proves nothing. A folder may be pruned by
    another process at any time, and is then made again.
    """

    def __init__(self, root: str, *, lasting: bool = True) -> None:
        """Without `lasting`, for files that nobody will look for after a power loss."""
        self.root = root
        self._lasting = lasting
        # The folders known not to be links, and whether they are durable as well.
        self._known: dict[str, bool] = {}

    def check_above(self, path: str) -> None:
        """Raise `StoreError` if a symbolic link lies between the root and this file."""
        self._check(os.path.dirname(path))

    def settle_above(self, path: str) -> None:
        """Make all folders above this file exist and survive a power loss."""
        self._settle(os.path.dirname(path))

    def place(self, path: str, name_it: Callable[[], T]) -> T:
        """What `name_it` returns, which gives a file the name `path`, with its folder settled.

        Syncing that folder is the caller's next step.
        """
        folder = os.path.dirname(path)
        for _ in range(_PATIENCE):
            try:
                self._settle(folder)
                return name_it()
            except FileNotFoundError:
                self._forget(folder)
        self._settle(folder)
        return name_it()

    def sync_above(self, path: str) -> None:
        """Sync the folder of this file; if it is pruned by now, the folder that lost its name."""
        while path != self.root:
            path = os.path.dirname(path)
            try:
                return sync_folder(path)
            except FileNotFoundError:
                if path == self.root:
                    raise

    def prune_above(self, path: str) -> None:
        """Remove the folders above this file as far as they are empty."""
        folder = os.path.dirname(path)
        with suppress(OSError):
            while folder != self.root:
                os.rmdir(folder)
                self._known.pop(folder, None)
                folder = os.path.dirname(folder)

    def _check(self, folder: str) -> None:
        if folder == self.root or folder in self._known:
            return
        self._check(os.path.dirname(folder))
        try:
            mode = os.lstat(folder).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return
        if stat.S_ISLNK(mode):
            raise StoreError(
                f"expected a folder at {folder}, found a symbolic link.",
                remedy="A store never follows links out of its root. Put the folder itself "
                "there, or link the whole root.",
            )
        if stat.S_ISDIR(mode):
            self._remember(folder, durable=False)

    def _settle(self, folder: str) -> None:
        if self._known.get(folder):
            return
        if folder == self.root:
            self._settle_root()
        else:
            parent = os.path.dirname(folder)
            self._settle(parent)
            with suppress(FileExistsError):
                os.mkdir(folder)
                _named.pop(folder, None)
            self._check(folder)
            _settle_names(folder, parent)
        self._remember(folder, durable=True)

    def _settle_root(self) -> None:
        missing = self.root
        while not os.path.isdir(missing):  # the inode of what was there may be given out again
            _named.pop(missing, None)
            missing = os.path.dirname(missing)
        os.makedirs(self.root, exist_ok=True)
        if self._lasting:
            _settle_names(self.root)

    def _remember(self, folder: str, *, durable: bool) -> None:
        if len(self._known) >= _FOLDERS_MAX:
            self._known.clear()
        self._known[folder] = durable

    def _forget(self, folder: str) -> None:
        while folder != self.root:
            self._known.pop(folder, None)
            folder = os.path.dirname(folder)
        self._known.pop(self.root, None)


def _settle_names(folder: str, top: str = "") -> None:
    """Make the names of a folder, and of all above it up to `top`, durable, unless they are.

    Stores come and go in a process by the thousand, and most lie side by side. A folder that was
    removed and made again has another inode, and is no longer known.
    """
    found: dict[str, int] = {}
    while folder != top and not os.path.ismount(folder):
        inode = os.stat(folder).st_ino
        if _named.get(folder) == inode:
            break
        found[folder] = inode
        folder = os.path.dirname(folder)
        # What this user may not read, this user has not just made.
        with suppress(PermissionError):
            sync_folder(folder)
    if len(_named) >= _FOLDERS_MAX:
        _named.clear()
    _named.update(found)
