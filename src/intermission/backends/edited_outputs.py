"""Published files that a person edited: kept beside the new ones, never written over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from intermission.engine.receipt import is_sound
from intermission.errors import AlreadyExists
from intermission.model import FileRef
from intermission.ports.store import Stat, Store

log = logging.getLogger(__name__)


def keep_edited(
    outputs: Store,
    found: Stat,
    ours: Collection[str],
    scratch: Path,
    *,
    warn: Callable[[str], object] = log.warning,
) -> None:
    """Copy a file that is about to be replaced, unless its SHA-256 is one of `ours`.

    The name of the copy has the time of the edit, so a repeat after a crash makes no second one.
    """
    name = PurePosixPath(found.key)
    refs = [FileRef(name.name, found.key, found.size_bytes, sha256) for sha256 in ours]
    if any(is_sound(outputs, ref, scratch) for ref in refs):
        return
    at = datetime.fromtimestamp(found.modified_ms / 1000, UTC)
    kept = name.with_name(f"{name.stem}.edited-{at:%Y%m%d-%H%M%S}{name.suffix}")
    with suppress(AlreadyExists):
        outputs.create(str(kept), outputs.local_path(found.key) or outputs.read(found.key))
    warn(f"{name} was edited after it was published; the edited file is now {kept}")
