"""A workspace: where the receipts, artifacts, outputs and ledger of a source's jobs live."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from intermission.ports.ledger import Ledger
from intermission.ports.store import Store


@dataclass(frozen=True)
class Workspace:
    """How to open each part. The openers travel to slots, so they must pickle."""

    folder: Path
    """On this machine: logs, locks and working files."""
    open_store: Callable[[], Store]
    open_outputs: Callable[[], Store] | None
    open_ledger: Callable[[], Ledger]


@contextmanager
def alive(workspace: Workspace, worker: str) -> Generator[None, None, None]:
    """Hold a lock that the kernel frees at this process's death, whatever kills it."""
    path = _lock_path(workspace, worker)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def dead(workspace: Workspace, workers: Collection[str]) -> list[str]:
    """Those of these workers that are proven dead: their lock is there and nobody holds it.

    A stopped or slow worker still holds its lock, and one on another machine has none here;
    for those the lease's expiry decides.
    """
    return [worker for worker in workers if _is_dead(_lock_path(workspace, worker))]


def living(workspace: Workspace) -> list[str]:
    """The workers of this machine that are at work in a workspace."""
    locks = sorted(workspace.folder.glob("workers/*"))
    return [path.name for path in locks if not _is_dead(path)]


def _is_dead(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def _lock_path(workspace: Workspace, worker: str) -> Path:
    return workspace.folder / "workers" / worker
