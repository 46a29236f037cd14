"""What no event tells: queues that stand still, disks that fill up, workers that fell silent.

Reads only. Each look says how things stand now; whether a person is told is decided elsewhere.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from intermission.model import CLAIMABLE, JobRow, Limit, TaskState
from intermission.ports.clock import Clock
from intermission.ports.ledger import Ledger
from intermission.ports.registry import Registry
from intermission.services.alerts import Situation
from intermission.services.oldest_jobs import OldestJobs

QUEUE_OLD_MS = 15 * 60 * 1000
DISK_LOW_FRACTION = 0.10
DISK_LOW_BYTES = 5 * 2**30
OFFLINE_MS = 5 * 60 * 1000
JOBS_MAX = 200
"""How many jobs are looked at, the oldest: they have waited longest."""
TASKS_MAX = 20
"""Of how many jobs of a pipeline a task is read."""

READY = CLAIMABLE - {TaskState.RETRYING}

DiskUsage = Callable[[], tuple[int, int]]
"""Free bytes and all bytes."""


class Queues:
    """How long the task that is next in line has been next in line, by pipeline.

    A ledger does not keep since when a task is claimable, so this counts from when it was first
    seen there: a server that was just started has seen nothing old.
    """

    def __init__(self, scope: str, clock: Clock) -> None:
        self._scope = scope
        self._clock = clock
        self._jobs = OldestJobs()
        self._since_s: dict[tuple[int, int], float] = {}
        """By task and fence: a task that was claimed meanwhile is another one."""

    def look(self, ledger: Ledger) -> Iterator[Situation]:
        now_s = self._clock.monotonic_s()
        before, self._since_s = self._since_s, {}
        oldest: dict[str, tuple[float, str, str]] = {}
        for row, name, task in self._next_in_line(ledger):
            since_s = self._since_s[task] = before.get(task, now_s)
            known = oldest.get(row.job.pipeline)
            if known is None or since_s < known[0]:
                oldest[row.job.pipeline] = since_s, row.job.key, name
        for pipeline, (since_s, job_key, name) in oldest.items():
            waited_s = round(now_s - since_s)
            if waited_s * 1000 > QUEUE_OLD_MS:
                yield Situation(
                    "queue.old",
                    f"{self._scope} {pipeline}",
                    {"pipeline": pipeline, "job": job_key, "task": name, "waited_s": waited_s},
                    f"{name} of {pipeline} has waited for a worker for {waited_s // 60} minutes.",
                    "Start more workers: intermission worker. What its step needs, and what is "
                    f"held back: intermission status {job_key[:10]}, intermission limit",
                )

    def _next_in_line(self, ledger: Ledger) -> Iterator[tuple[JobRow, str, tuple[int, int]]]:
        """The first claimable task of each of the oldest jobs, unless a person told it to wait."""
        paused = {limit.name for limit in ledger.limits() if limit.paused}
        now_ms = self._clock.now_ms()
        looked: dict[str, int] = {}
        for row in self._jobs.look(ledger, JOBS_MAX):
            job = row.job
            if job.not_before_ms > now_ms or not row.total(*READY):
                continue
            looked[job.pipeline] = looked.get(job.pipeline, 0) + 1
            if looked[job.pipeline] > TASKS_MAX:
                continue
            task = next(iter(ledger.tasks(job.key, states=READY, limit=1)), None)
            if task is not None and paused.isdisjoint(Limit.names(job, job.step(task.step))):
                yield row, task.name, (task.id, task.fence)


def low_disk(folder: Path, usage: DiskUsage) -> Iterator[Situation]:
    """Whether the disk that holds a folder is nearly full."""
    free, total = usage()
    if free >= DISK_LOW_BYTES and free >= total * DISK_LOW_FRACTION:
        return
    host = socket.gethostname()
    percent = 100 * free // max(total, 1)
    yield Situation(
        "disk.low",
        f"{host} {folder}",
        {"host": host, "folder": str(folder), "free_bytes": free, "total_bytes": total},
        f"{free / 2**30:.1f} GiB ({percent} %) are free on the disk of {folder} on {host}.",
        f"intermission gc {folder}, or give it more room.",
    )


def usage_of(folder: Path) -> DiskUsage:
    """Of the disk that holds a folder, which need not be there yet."""

    def usage() -> tuple[int, int]:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        found = shutil.disk_usage(there)
        return found.free, found.total

    return usage


class WorkerWatch:
    """Tells when a registered worker falls silent, and when it is heard again."""

    def __init__(self, workers: Callable[[], Mapping[str, tuple[str, bool]]]) -> None:
        """`workers` has, by id, a name and whether the worker is online."""
        self._workers = workers
        self._before: Mapping[str, tuple[str, bool]] | None = None

    def look(self) -> Iterator[Situation]:
        now = self._workers()
        before, self._before = self._before, now
        for id, (name, online) in now.items():
            if before is None or id not in before or before[id][1] == online:
                continue
            subject = {"worker": id, "name": name}
            if online:
                said = f"worker {name} is heard again."
                yield Situation("worker.online", id, subject, said, "There is nothing to do.")
            else:
                said = f"worker {name} has not been heard for {OFFLINE_MS // 60_000} minutes."
                remedy = "Its tasks run elsewhere. On its machine: intermission worker"
                yield Situation("worker.offline", id, subject, said, remedy)


def registered(registry: Registry, clock: Clock) -> dict[str, tuple[str, bool]]:
    """The workers of a registry that are not disabled, as a `WorkerWatch` asks for them."""
    now_ms = clock.now_ms()
    return {
        row.id: (row.name, row.heard_ms is not None and now_ms - row.heard_ms <= OFFLINE_MS)
        for row in registry.workers()
        if row.revoked_ms is None
    }
