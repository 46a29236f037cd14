"""Keys of workers: `imw_<prefix>_<secret>`, shown once, kept as a prefix and a SHA-256.

The secret is 256 random bits, so that a plain hash is as good as a slow one, and is compared in
constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from intermission.ports.registry import KeyRow

KEY_START = "imw_"
_KEY = re.compile(r"imw_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")


def mint(*, expires_ms: int | None = None) -> tuple[str, KeyRow]:
    """A new key, and what is kept of it."""
    prefix = secrets.token_hex(4)
    key = f"{KEY_START}{prefix}_{secrets.token_urlsafe(32)}"
    return key, KeyRow(prefix, _sha256(key), expires_ms)


def prefix_of(key: str) -> str | None:
    """The public part of a key; None for what is no key."""
    found = _KEY.fullmatch(key)
    return found and found[1]


def opens(key: str, kept: KeyRow) -> bool:
    """Whether this is the key that was kept, expired or not."""
    return hmac.compare_digest(_sha256(key), kept.sha256)


def _sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
