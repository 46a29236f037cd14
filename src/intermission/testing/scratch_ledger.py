"""A ledger for one test: SQLite in a folder of its own, in memory where the system offers that.

What is tested with it is logic, not the disk. The folder goes with the ledger that made it.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TypeVar

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.ports.clock import Clock

L = TypeVar("L", bound=SqliteLedger)

_IN_MEMORY = Path("/dev/shm")


def scratch_folder() -> Path:
    """A new folder, on a file system in memory where there is one."""
    return Path(tempfile.mkdtemp(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))


def scratch_ledger(clock: Clock | None = None, kind: type[L] = SqliteLedger) -> L:
    """A new, empty ledger. `ledger.path` is where others open it too."""
    folder = scratch_folder()
    ledger = kind(folder / "ledger.sqlite", clock=clock)
    weakref.finalize(ledger, shutil.rmtree, folder, ignore_errors=True)
    return ledger
