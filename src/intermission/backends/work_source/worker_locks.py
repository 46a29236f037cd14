"""Which workers of this machine live: each holds a lock that the kernel frees at its death."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from intermission.engine.workspace import Workspace
from intermission.errors import EnvironmentFault, fault_from_os
from intermission.scratch import is_held


def worker_name() -> str:
    """A name that no other worker has, and that says where it is."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"


def is_of_this_machine(worker: str) -> bool:
    """Whether a worker with this name is, or was, a process of this machine."""
    return worker.rsplit("-", 2)[0] == socket.gethostname()


@contextmanager
def alive(workspace: Workspace, worker: str) -> Generator[None, None, None]:
    """Hold a lock that the kernel frees at this process's death, whatever kills it.

    The file stays until somebody buries this worker: it may have left leases behind, because
    its ledger could not be written, and only a lock proves that they are nobody's now.
    """
    path = workspace.folder / "workers" / worker
    hidden = path.with_name(f".{worker}")
    with _faults(workspace, "announcing this worker"):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with _faults(workspace, "announcing this worker"):
            fcntl.flock(fd, fcntl.LOCK_EX)
            hidden.rename(path)  # only now, so that nobody sees it without its lock
        yield
    finally:
        os.close(fd)


def dead(workspace: Workspace) -> list[str]:
    """Workers of this machine that are proven dead: their lock is there and nobody holds it.

    A stopped or slow worker still holds its lock, and one on another machine has none here;
    for those the lease's expiry decides.
    """
    with _faults(workspace, "looking for dead workers"):
        return sorted(path.name for path in _locks(workspace) if is_held(path) is False)


def living(workspace: Workspace) -> list[str]:
    """Workers of this machine that are at work in a workspace."""
    with _faults(workspace, "looking for workers"):
        return sorted(path.name for path in _locks(workspace) if is_held(path) is not False)


def bury(workspace: Workspace, workers: Collection[str]) -> None:
    """Remove the locks of dead workers, once their leases are ended."""
    with _faults(workspace, "removing the locks of dead workers"):
        for worker in workers:
            (workspace.folder / "workers" / worker).unlink(missing_ok=True)


def _locks(workspace: Workspace) -> list[Path]:
    return list((workspace.folder / "workers").glob("[!.]*"))


@contextmanager
def _faults(workspace: Workspace, doing: str) -> Generator[None, None, None]:
    try:
        yield
    except OSError as e:
        raise fault_from_os(e, doing, EnvironmentFault, where=workspace.folder) from e
