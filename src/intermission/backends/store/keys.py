"""Which keys a store takes. Every store asks here, so that a key good for one is good for all."""

from __future__ import annotations

import re

from intermission.errors import UsageError

TEMP_FOLDER = ".tmp"
"""Where a local store keeps files that are not objects yet; no key starts with this part."""

_KEY_MAX_BYTES = 1024  # S3's limit
_PART_MAX_BYTES = 255  # the limit of a file name

# The whole key in one look: parts without NUL or backslash, joined by single slashes.
_SHAPE = re.compile(r"[^/\0\\]+(?:/[^/\0\\]+)*")


def is_key(key: str) -> bool:
    """Whether a string can be the key of an object."""
    if not _SHAPE.fullmatch(key):
        return False
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:  # half of a surrogate pair, as in a file name that is not UTF-8
        return False
    if size_bytes > _KEY_MAX_BYTES:
        return False
    parts = key.split("/")
    return (
        parts[0] != TEMP_FOLDER
        and "." not in parts
        and ".." not in parts
        and (
            size_bytes <= _PART_MAX_BYTES or max(len(p.encode()) for p in parts) <= _PART_MAX_BYTES
        )
    )


def checked_key(key: str) -> str:
    """The key itself. Raises `UsageError` when it cannot be one."""
    if is_key(key):
        return key
    raise UsageError(
        f"{key!r} cannot be the key of an object.",
        remedy="A key is relative, its parts are joined by single slashes and are neither '.' nor "
        f"'..', it does not start with {TEMP_FOLDER!r}, holds no NUL and no backslash, and has at "
        f"most {_KEY_MAX_BYTES} bytes of UTF-8, {_PART_MAX_BYTES} in each part.",
    )


def split_prefix(prefix: str) -> tuple[str, str]:
    """A prefix as the folder it lies in ("" for the root) and the start of a name there."""
    folder, _, start = prefix.rpartition("/")
    if folder or prefix.startswith("/"):
        checked_key(folder)
    return folder, start
