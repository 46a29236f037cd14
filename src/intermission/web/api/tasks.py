"""Tasks over HTTP: a job's, page by page, or one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from intermission.composition.fleet import Fleet
from intermission.model import TaskState
from intermission.operations.documents import (
    GroupList,
    LogDocument,
    TaskDetails,
    TaskDocument,
    TaskPage,
    WaitList,
    WhyDocument,
)
from intermission.web.api.jobs import JobKey, job_handle, job_row
from intermission.web.api.paging import NUMBER_MAX, Cursor, Limit, page
from intermission.web.problems import Problem, documented

LOG_MAX_BYTES = 16 * 1024**2

Name = Annotated[
    str,
    Query(
        min_length=1,
        max_length=300,
        description="A step, a chunk such as `count[7]`, or the beginning of the task's key.",
    ),
]


def tasks_router(fleet: Fleet) -> APIRouter:
    router = APIRouter(tags=["tasks"], responses=documented(404))

    @router.get("/jobs/{key}/tasks", operation_id="listTasks")
    def tasks(
        key: JobKey,
        state: Annotated[list[TaskState], Query(max_length=10)] = [],  # noqa: B006
        step: Annotated[str | None, Query(max_length=200)] = None,
        cursor: Cursor = None,
        limit: Limit = 100,
    ) -> TaskPage:
        """List a job's tasks in the order they were added."""
        job = job_row(fleet, key).job
        if step is not None and step not in {spec.name for spec in job.steps}:
            return TaskPage(tasks=[], next=None)
        after = int(cursor or 0)
        rows = fleet.ledger.tasks(key, states=state, step=step, after=after, limit=limit + 1)
        shown, cursor = page(rows, lambda row: row.id, limit)
        return TaskPage(tasks=[TaskDocument.of(row) for row in shown], next=cursor)

    @router.get("/jobs/{key}/tasks/{id}", operation_id="getTask")
    def task(key: JobKey, id: Annotated[int, Path(ge=1, le=NUMBER_MAX)]) -> TaskDocument:
        """Show one task by its number in the ledger."""
        job_row(fleet, key)
        row = next(iter(fleet.ledger.tasks(key, after=id - 1, limit=1)), None)
        if row is not None and row.id == id:
            return TaskDocument.of(row)
        raise Problem(
            404,
            "No such task",
            f"job {key[:10]} has no task {id}.",
            remedy="GET /api/v1/jobs/{key}/tasks lists them.",
        )

    @router.get("/jobs/{key}/task", operation_id="findTask")
    def named_task(key: JobKey, name: Name) -> TaskDetails:
        """Show all there is to know of a task, found by its name."""
        return job_handle(fleet, key).details(name)

    @router.get("/jobs/{key}/task/why", operation_id="whyTask")
    def why(key: JobKey, name: Name) -> WhyDocument:
        """Say in one line why a task ran, was reused, or has not run."""
        return job_handle(fleet, key).why(name)

    @router.get("/jobs/{key}/task/log", operation_id="taskLog")
    def log(
        key: JobKey,
        name: Name,
        attempt: Annotated[int | None, Query(ge=1, le=NUMBER_MAX)] = None,
    ) -> LogDocument:
        """Show what a task wrote on this server's machine or storage: the end, if it is long."""
        return job_handle(fleet, key).log(name, attempt, max_bytes=LOG_MAX_BYTES)

    @router.get("/jobs/{key}/waiting", operation_id="listWaiting")
    def waiting(key: JobKey) -> WaitList:
        """Say what keeps a job's tasks from starting: a pause, a limit, a missing worker."""
        return WaitList(waiting=job_handle(fleet, key).waiting())

    @router.get("/jobs/{key}/groups", operation_id="listGroups")
    def groups(key: JobKey) -> GroupList:
        """Show how far a job is in each of its groups, such as the renditions of a video."""
        return GroupList(groups=job_handle(fleet, key).groups())

    return router
