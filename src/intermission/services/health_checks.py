"""What no event tells: queues that stand still, disks that fill up, workers that fell silent.

Reads only. Each look says how things stand now; whether a person is told is decided elsewhere.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from intermission.model import Limit
from intermission.ports.clock import Clock
from intermission.ports.ledger import Ledger
from intermission.ports.registry import Registry
from intermission.services.alerts import Situation
from intermission.services.oldest_jobs import OldestJobs

QUEUE_OLD_MS = 15 * 60 * 1000
DISK_LOW_FRACTION = 0.10
DISK_LOW_BYTES = 5 * 2**30
OFFLINE_MS = 5 * 60 * 1000


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
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        paused = {limit.name for limit in ledger.limits() if limit.paused}
        before, self._since_s = self._since_s, {}
        oldest: dict[str, tuple[float, str, str]] = {}
        for row, task in self._jobs.next_in_line(ledger):
            job, seen = row.job, (task.id, task.fence)
            is_paused = not paused.isdisjoint(Limit.names(job, job.step(task.step)))
            if is_paused or job.not_before_ms > now_ms:
                continue  # a person told it to wait
            since_s = self._since_s[seen] = before.get(seen, now_s)
            if job.pipeline not in oldest or since_s < oldest[job.pipeline][0]:
                oldest[job.pipeline] = since_s, job.key, task.name
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


def low_disk(folder: Path, free: int, total: int) -> Iterator[Situation]:
    """Whether the disk that holds a folder is nearly full, by its free bytes and all bytes."""
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


def disk_usage(folder: Path) -> tuple[int, int]:
    """Free bytes and all bytes of the disk that holds a folder, which need not be there yet."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    found = shutil.disk_usage(there)
    return found.free, found.total


class WorkerWatch:
    """Tells when a registered worker falls silent, and when it is heard again."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._before: dict[str, bool] = {}
        """By id of a worker that is not disabled: whether it was online at the last look."""

    def look(self) -> Iterator[Situation]:
        workers, now_ms = self._registry.workers(), self._clock.now_ms()
        before, self._before = self._before, {}
        for row in workers:
            if row.revoked_ms is not None:
                continue
            online = row.heard_ms is not None and now_ms - row.heard_ms <= OFFLINE_MS
            self._before[row.id] = online
            if before.get(row.id, online) == online:
                continue
            subject = {"worker": row.id, "name": row.name}
            if online:
                said = f"worker {row.name} is heard again."
                yield Situation("worker.online", row.id, subject, said, "There is nothing to do.")
            else:
                said = f"worker {row.name} has not been heard for {OFFLINE_MS // 60_000} minutes."
                remedy = "Its tasks run elsewhere. On its machine: intermission worker"
                yield Situation("worker.offline", row.id, subject, said, remedy)
