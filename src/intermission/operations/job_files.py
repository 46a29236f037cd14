"""The files of jobs for the commands of an operator: their stores and outputs, opened once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from intermission.backends.store.key_encoding import key_of
from intermission.backends.store.keys import TEMP_FOLDER, checked_key
from intermission.composition.fleet import Fleet
from intermission.engine.workspace import Workspace
from intermission.errors import NotFound
from intermission.model import Job
from intermission.ports.store import Stat, Store

__all__ = ["OpenJobs", "Opened", "Stat", "Store", "checked_key", "key_in_url"]

OPEN_MAX = 256


@dataclass(frozen=True)
class Opened:
    """A job's files, ready for use."""

    job: Job
    workspace: Workspace
    areas: dict[str, Store]

    def area(self, name: str) -> Store:
        if name not in self.areas:
            raise NotFound(f"job {self.job.key[:10]} has no {name}.")
        return self.areas[name]

    @property
    def spool(self) -> Path:
        """For what is on its way in or out. A local store sweeps it, whoever was killed."""
        return self.workspace.folder / TEMP_FOLDER


class OpenJobs:
    """The jobs whose files were asked for last."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, Opened] = OrderedDict()

    def opened(self, job_key: str) -> Opened:
        """Raises `NotFound` for a job that the ledger does not have."""
        with self._lock:
            if job_key in self._opened:
                self._opened.move_to_end(job_key)
                return self._opened[job_key]
        rows = [row for row in self._fleet.ledger.jobs(job_key) if row.job.key == job_key]
        if not rows:
            raise NotFound(f"there is no job {job_key}.", remedy="Submit it first.")
        workspace = self._fleet.workspace(rows[0].job)
        areas = {"store": workspace.open_store()}
        if workspace.open_outputs is not None:
            areas["outputs"] = workspace.open_outputs()
        opened = Opened(rows[0].job, workspace, areas)
        with self._lock:
            self._opened[job_key] = opened
            while len(self._opened) > OPEN_MAX:
                self._opened.popitem(last=False)
        return opened


def key_in_url(text: str) -> str:
    """The key that a part of a URL spells. Raises `UsageError` for what is none."""
    return checked_key(key_of(text))
