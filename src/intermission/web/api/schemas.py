"""What the API answers: the documents of docs/reference/events.md, as models.

Their fields are those that the command line prints, so that a program reads both alike. Within
version 1 fields are added, never removed or given another meaning.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from intermission.composition.documents import event_fields, timestamp
from intermission.composition.locations import location_of
from intermission.model import Event, JobRow, JobState, TaskRow, TaskState
from intermission.operations.rendition_progress import GroupState

When = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""UTC, as `2026-01-31T12:00:00.000Z`."""


class JobShape(BaseModel):
    """A job, and its tasks counted by step and state."""

    job: str
    pipeline: str
    ref: str
    source: str
    params: dict[str, Any]
    priority: int
    state: JobState
    reason: str | None
    created: When
    updated: When
    steps: dict[str, dict[TaskState, int]]

    @classmethod
    def of(cls, row: JobRow) -> JobShape:
        job = row.job
        return cls(
            job=job.key,
            pipeline=job.pipeline,
            ref=_text(job.ref),
            source=_text(str(location_of(job.source))),
            params=json.loads(job.params),
            priority=job.priority,
            state=row.state,
            reason=row.reason,
            created=timestamp(row.created_ms),
            updated=timestamp(row.updated_ms),
            steps={spec.name: dict(row.counts.get(spec.name, {})) for spec in job.steps},
        )


class TaskShape(BaseModel):
    """A task as the ledger has it now. `id` is its number in the ledger."""

    id: int
    task: str
    step: str
    index: int
    key: str
    chunk: Any
    state: TaskState
    attempts: int
    fence: int
    worker: str | None
    progress: float
    reused: bool
    error: str | None
    message: str | None
    started: When | None
    ended: When | None
    ready: When | None

    @classmethod
    def of(cls, row: TaskRow) -> TaskShape:
        return cls(
            id=row.id,
            task=row.name,
            step=row.step,
            index=row.index,
            key=row.key,
            chunk=None if row.chunk is None else json.loads(row.chunk),
            state=row.state,
            attempts=row.attempts,
            fence=row.fence,
            worker=row.worker,
            progress=row.progress,
            reused=row.adopted,
            error=row.error,
            message=row.message,
            started=_when(row.started_ms),
            ended=_when(row.ended_ms),
            ready=_when(row.ready_ms),
        )


class GroupShape(BaseModel):
    """Tasks of a step that agree in a field, such as one quality of a film."""

    step: str
    by: str
    name: str
    state: GroupState
    done: int
    total: int
    unit: str
    reason: str | None


class GroupEventShape(GroupShape):
    """A group that is not what it was, in the stream of events."""

    event: Literal["group"] = "group"
    job: str


class GroupList(BaseModel):
    """How far a job is in each of its groups; empty for pipelines that have none."""

    groups: list[GroupShape]


class EventShape(BaseModel):
    """A change in the ledger: of a task, of a job as a whole, or of a task's progress alone."""

    event: Literal["job", "task", "progress"]
    seq: int
    at: When
    job: str
    task: str | None
    was: str | None
    now: str
    fence: int | None
    worker: str | None
    message: str | None
    progress: float | None

    @classmethod
    def of(cls, event: Event) -> EventShape:
        return cls(**event_fields(event))


class JobPage(BaseModel):
    """Jobs, newest first. `next` is the cursor of the page after this one, or null."""

    jobs: list[JobShape]
    next: str | None


class TaskPage(BaseModel):
    """Tasks in the order they were added. `next` is the cursor of the page after this one."""

    tasks: list[TaskShape]
    next: str | None


class EventPage(BaseModel):
    """Events in order. Ask again with `after=next`; at once when there is `more` by now."""

    events: list[EventShape]
    next: int
    more: bool


class Retried(BaseModel):
    """How many tasks were put back, and the job as it is now."""

    put_back: int
    job: JobShape


def _when(at_ms: int | None) -> str | None:
    return None if at_ms is None else timestamp(at_ms)


def _text(name: str) -> str:
    """A path as text: bytes of it that are no UTF-8 cannot be sent."""
    return name.encode(errors="replace").decode()
