"""What failed for good, over all jobs: grouped by what went wrong, put back together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from intermission.model import TaskState
from intermission.operations.job_lookup import each_job
from intermission.ports.ledger import Ledger, every_task


@dataclass
class FailureGroup:
    """Tasks of one step that failed with the same kind of error."""

    pipeline: str
    step: str
    error: str
    message: str = ""
    """Of the latest of them."""
    last_ms: int = 0
    tasks: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """By job, the ids of those that failed."""

    @property
    def count(self) -> int:
        return sum(map(len, self.tasks.values()))


def failure_groups(
    ledger: Ledger,
    *,
    pipeline: str | None = None,
    step: str | None = None,
    error: str | None = None,
) -> list[FailureGroup]:
    """The failed tasks of all jobs, most frequent kind first; those wanted, if any are named."""
    groups: dict[tuple[str, str, str], FailureGroup] = {}
    for row in each_job(ledger, pipeline=pipeline):
        if not row.total(TaskState.FAILED):
            continue
        for task in every_task(ledger, row.job.key, states=[TaskState.FAILED]):
            kind = task.error or ""
            if step not in (None, task.step) or error not in (None, kind):
                continue
            named = (row.job.pipeline, task.step, kind)
            group = groups.setdefault(named, FailureGroup(*named))
            group.tasks.setdefault(row.job.key, []).append(task.id)
            if (task.ended_ms or 0) >= group.last_ms:
                group.last_ms, group.message = task.ended_ms or 0, task.message or ""
    return sorted(groups.values(), key=lambda group: (-group.count, -group.last_ms))


def put_back_all(ledger: Ledger, groups: Iterable[FailureGroup]) -> int:
    """Give the tasks of these groups a fresh set of attempts. How many tasks changed."""
    by_job: dict[str, list[int]] = {}
    for group in groups:
        for job_key, ids in group.tasks.items():
            by_job.setdefault(job_key, []).extend(ids)
    return sum(ledger.retry(job_key, ids) for job_key, ids in by_job.items())
