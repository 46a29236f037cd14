"""Sources that a server was given: each in a folder of its own below the setting `store`.

An upload is written once and never replaced: jobs are planned for the bytes it has. Its
workspace and outputs come to lie beside it, as those of any source do.
"""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path
from uuid import uuid4

from intermission.backends.store.fsync import sync_file
from intermission.backends.store.keys import TEMP_FOLDER
from intermission.backends.store.local import LocalStore
from intermission.backends.store.objects import ObjectStore
from intermission.composition.locations import Location, as_location, is_url
from intermission.errors import (
    AlreadyExists,
    CorruptArtifact,
    EnvironmentFault,
    NotFound,
    UsageError,
    fault_from_os,
)
from intermission.ports.store import Store
from intermission.settings import Settings

NAME_MAX_BYTES = 200  # a workspace adds to it, and a file name has at most 255
_NAME = re.compile(r"[^\W_][^/\\\0-\x1f\x7f:*?\"<>|]*")


def checked_name(name: str) -> str:
    """The name itself. Raises `UsageError` when a source cannot be called so."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        size_bytes = NAME_MAX_BYTES + 1
    if (
        size_bytes <= NAME_MAX_BYTES
        and _NAME.fullmatch(name)
        and name == name.rstrip(" .")
        and all(unicodedata.category(character) not in ("Cc", "Cf") for character in name)
    ):
        return name
    raise UsageError(
        f"{name[:80]!r} cannot be the name of a source.",
        remedy="A name begins with a letter or a digit, holds no slash, backslash, control "
        f'character or any of :*?"<>|, and has at most {NAME_MAX_BYTES} bytes of UTF-8.',
    )


class Uploads:
    """The store of a server: what it was given, and notes about the requests it answered."""

    def __init__(self, settings: Settings) -> None:
        where = settings.store or str(settings.data_dir / "store")
        self._patience_s = settings.store_patience_s
        self._url = where.rstrip("/") if is_url(where) else None
        self._folder = Path(where).expanduser().resolve()
        self._spool = self._folder / TEMP_FOLDER
        """On the file system that keeps the uploads, where there is one."""
        if self._url is not None:
            self._spool = settings.cache_dir.expanduser() / "uploads"

    def open(self) -> Store:
        if self._url is not None:
            return ObjectStore(self._url, patience_s=self._patience_s)
        return LocalStore(self._folder)

    def place(self, name: str) -> Location:
        """Where the upload of a name is. Raises `NotFound` when there is none."""
        key = _key(checked_name(name))
        if self.open().stat(key) is None:
            raise NotFound(f"there is no upload {name!r}.", remedy="PUT it to /api/v1/sources.")
        return as_location(f"{self._url}/{key}") if self._url else self._folder / key

    def spool(self) -> Path:
        """The path of a new file for bytes that are still coming in."""
        try:
            self._spool.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise fault_from_os(e, "receiving a file", EnvironmentFault, where=self._spool) from e
        return self._spool / f"upload-{uuid4().hex}"

    def keep(self, name: str, spooled: Path) -> None:
        """Make a spooled file the upload of this name. Raises `AlreadyExists` if it has one."""
        key = _key(checked_name(name))
        store = self.open()
        path = store.local_path(key)
        if path is None:
            store.create(key, spooled)
            return
        try:
            # Its bytes before its name, as the store would: but hours of video are not copied.
            sync_file(str(spooled))
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(spooled, path)
        except FileExistsError:
            raise AlreadyExists(
                f"there is an upload {name!r} already.",
                remedy="An upload is never replaced: give these bytes another name.",
            ) from None
        except OSError as e:
            raise fault_from_os(e, f"keeping {name}", EnvironmentFault, where=path.parent) from e
        store.create(key, path)

    def has(self, name: str, spooled: Path, sha256: str) -> bool:
        """Whether the upload of a name has the bytes of this file, which hash to this."""
        size_bytes = spooled.stat().st_size
        copy = spooled.with_suffix(".copy")
        try:
            self.open().fetch(_key(name), copy, size_bytes=size_bytes, sha256=sha256)
        except CorruptArtifact:
            return False
        finally:
            copy.unlink(missing_ok=True)
        return True


def _key(name: str) -> str:
    return f"sources/{name}/{name}"
