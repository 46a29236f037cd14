"""The documents of docs/reference/events.md: what `--json` prints and the API answers, alike.

Within version 1 fields are added, never removed or given another meaning.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from intermission import errors
from intermission.composition.event_log import timestamp
from intermission.composition.locations import location_of
from intermission.model import Event, JobRow, JobState, TaskRow, TaskState, canonical

if TYPE_CHECKING:
    from intermission.errors import IntermissionError
    from intermission.operations.failures import FailureGroup
    from intermission.operations.run import RunReport, SourceRun

VERSION = 1
PARAM_MAX_BYTES = 1000
"""A parameter that is longer is left out of lists."""

When = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""UTC, as `2026-01-31T12:00:00.000Z`."""


def steps_of(row: JobRow) -> dict[str, dict[TaskState, int]]:
    """Tasks by step and state, in the order of the pipeline."""
    return {spec.name: dict(row.counts.get(spec.name, {})) for spec in row.job.steps}


class JobDocument(BaseModel):
    """A job, and its tasks counted by step and state."""

    job: str
    pipeline: str
    code: str
    source: str
    params: dict[str, Any]
    priority: int
    state: JobState
    reason: str | None
    created: When
    updated: When
    steps: dict[str, dict[TaskState, int]]

    def total(self, *states: str) -> int:
        """How many tasks it has in these states, or in any."""
        return sum(
            count
            for counts in self.steps.values()
            for state, count in counts.items()
            if not states or state in states
        )

    def brief(self) -> JobDocument:
        """Without the values of long parameters, such as subtitles: for lists and `status`."""
        return self.model_copy(
            update={"params": {name: _short(value) for name, value in self.params.items()}}
        )

    @classmethod
    def of(cls, row: JobRow, source: object = None) -> JobDocument:
        """`source` is where it was found, if that is known better than by the job."""
        job = row.job
        return cls(
            job=job.key,
            pipeline=job.pipeline,
            code=_text(job.code),
            source=_text(str(location_of(job.source))) if source is None else str(source),
            params=json.loads(job.params),
            priority=job.priority,
            state=row.state,
            reason=row.reason,
            created=timestamp(row.created_ms),
            updated=timestamp(row.updated_ms),
            steps=steps_of(row),
        )


class TaskDocument(BaseModel):
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
    code: str | None
    message: str | None
    refusals: int
    started: When | None
    ended: When | None
    ready: When | None

    @classmethod
    def of(cls, row: TaskRow) -> TaskDocument:
        return cls(
            id=row.id,
            task=row.name,
            step=row.step,
            index=row.index,
            key=row.key,
            chunk=None if row.chunk is None else json.loads(row.chunk),
            state=row.state,
            attempts=row.tries,
            fence=row.fence,
            worker=row.worker,
            progress=row.progress,
            reused=row.adopted,
            error=row.error,
            code=row.code,
            message=row.message,
            refusals=row.refusals,
            started=when(row.started_ms),
            ended=when(row.ended_ms),
            ready=when(row.ready_ms),
        )


WaitCode = Literal["paused", "limit", "rate", "not-before", "no-label", "no-worker", "interrupted"]


class WaitDocument(BaseModel):
    """What keeps tasks of these steps from starting. `name` is the limit's or the label's."""

    code: WaitCode
    name: str | None
    steps: list[str]
    reason: str
    remedy: str


class WaitList(BaseModel):
    """What keeps a job's tasks from starting; empty where nothing does."""

    waiting: list[WaitDocument]


class WhyDocument(BaseModel):
    """Why a task ran, was reused, or has not run, in one line.

    `waiting` has what keeps it from starting, for programs.
    """

    task: str
    state: TaskState
    why: str
    waiting: list[WaitDocument]


class LogDocument(BaseModel):
    """What an attempt of a task wrote. `attempt` is null where no log of the task is found here.

    Then `elsewhere` names the worker of another machine that ran it last, where there was one: logs
    stay on the machine of their worker.
    """

    task: str
    state: TaskState
    message: str | None
    attempt: int | None
    path: str | None
    text: str
    elsewhere: str | None = None


class FinishedDocument(BaseModel):
    """What became of a deferred task by the outcome that was sent for it."""

    job: str
    task: str
    state: TaskState


class ErrorDocument(BaseModel):
    """What went wrong, and what to do about it."""

    kind: str
    message: str
    remedy: str

    @classmethod
    def of(cls, error: IntermissionError) -> ErrorDocument:
        return cls(kind=type(error).__name__, message=error.message, remedy=error.remedy)

    def exception(self) -> IntermissionError:
        """The error itself again; its nearest plain relative where it carried more than text."""
        kind = getattr(errors, self.kind, errors.IntermissionError)
        if kind in (errors.WorkspaceBusy, errors.CorruptArtifact):
            kind = errors.IntermissionError
        return kind(self.message, remedy=self.remedy)


class SourceRunDocument(BaseModel):
    """One source's part in a run."""

    source: str
    job: str | None
    state: str
    total: int
    reused: int
    executed: int
    steps: dict[str, dict[TaskState, int]]
    outputs: list[str]
    failures: list[TaskDocument]
    warnings: list[str]
    error: ErrorDocument | None

    @classmethod
    def of(cls, run: SourceRun) -> SourceRunDocument:
        row = run.row
        state = "pending" if row is None else str(row.state)
        return cls(
            source=str(run.path),
            job=None if run.job is None else run.job.key,
            state=state if run.error is None else "failed",
            total=0 if row is None else row.total(),
            reused=run.reused + run.stats.adopted.total(),
            executed=run.stats.executed.total(),
            steps={} if row is None else steps_of(row),
            outputs=[str(path) for path in run.outputs],
            failures=[TaskDocument.of(failed) for failed in run.failures],
            warnings=list(run.stats.warnings),
            error=None if run.error is None else ErrorDocument.of(run.error),
        )


class RunDocument(BaseModel):
    """A whole run."""

    event: Literal["summary"] = "summary"
    exit_code: int
    interrupted: str | None
    total: int
    reused: int
    executed: int
    sources: list[SourceRunDocument]

    @classmethod
    def of(cls, report: RunReport) -> RunDocument:
        sources = [SourceRunDocument.of(run) for run in report.sources]
        return cls(
            exit_code=report.exit_code,
            interrupted=report.interrupted,
            total=sum(source.total for source in sources),
            reused=sum(source.reused for source in sources),
            executed=sum(source.executed for source in sources),
            sources=sources,
        )

    def raise_for_failure(self) -> RunDocument:
        """This document, if every source is done; else raises why the first is not."""
        for one in self.sources if self.exit_code else ():
            if one.error is not None:
                raise one.error.exception()
            if one.state != JobState.DONE:
                failed = "; ".join(f"{task.task}: {task.message}" for task in one.failures)
                raise errors.TaskError(
                    f"{one.source} is {one.state}: {failed or 'not all of its tasks are done'}.",
                    remedy="Run it again: what failed gets a fresh set of attempts.",
                )
        return self


class SubmittedJob(BaseModel):
    """A source, and its job. `new` is false for a job that was there; both are null on an error."""

    source: str
    job: str | None
    new: bool | None
    error: ErrorDocument | None


class SubmittedDocument(BaseModel):
    """What became of each source that was submitted."""

    jobs: list[SubmittedJob]


class FailureDocument(BaseModel):
    """Tasks of one step that failed with the same kind of error; `message` is the latest."""

    pipeline: str
    step: str
    error: str
    count: int
    message: str
    last: When
    jobs: list[str] = Field(description="The newest of them.")

    @classmethod
    def of(cls, group: FailureGroup, jobs_max: int | None = None) -> FailureDocument:
        return cls(
            pipeline=group.pipeline,
            step=group.step,
            error=group.error,
            count=group.count,
            message=group.message,
            last=timestamp(group.last_ms),
            jobs=list(group.tasks)[:jobs_max],
        )


class FailureList(BaseModel):
    """The most frequent first."""

    failures: list[FailureDocument]


class PutBack(BaseModel):
    """How many tasks were put back."""

    put_back: int


class LimitDocument(BaseModel):
    """A limit. Where `paused`, nothing begins, whatever the bounds are."""

    name: str
    running: int | None
    per_minute: float | None
    paused: bool


class LimitList(BaseModel):
    """Every limit, by name."""

    limits: list[LimitDocument]


class PrunedJob(BaseModel):
    """A job that ended long ago."""

    job: str
    pipeline: str
    state: JobState
    source: str
    ended: When

    @classmethod
    def of(cls, row: JobRow) -> PrunedJob:
        job = row.job
        ended = timestamp(row.updated_ms)
        source = _text(job.source.uri)
        return cls(job=job.key, pipeline=job.pipeline, state=row.state, source=source, ended=ended)


class PrunedPage(BaseModel):
    """Jobs that were forgotten, or would be. `next` is the cursor to go on with, or null."""

    jobs: list[PrunedJob]
    next: str | None


WorkerState = Literal["active", "idle", "busy", "offline", "disabled"]


class WorkerDocument(BaseModel):
    """A worker. One that uses the ledger directly is known by its leases alone: no `id`."""

    id: str | None
    name: str
    state: WorkerState
    can: list[str]
    version: str | None
    slots: int | None
    busy: int | None
    registered: When | None
    heard: When | None


class RefusedDocument(BaseModel):
    """What a host can't run for now: it gave so many tasks back, the reason, and until when."""

    host: str
    code: str
    message: str
    tasks: int
    until: When


class WorkerList(BaseModel):
    workers: list[WorkerDocument]
    refused: list[RefusedDocument]


class GroupState(StrEnum):
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class GroupDocument(BaseModel):
    """Tasks of a step that agree in a field, such as one rendition of a video."""

    model_config = ConfigDict(frozen=True)

    step: str
    by: str
    name: str
    state: GroupState
    done: int
    total: int
    unit: str
    reason: str | None


class GroupEventDocument(GroupDocument):
    """A group that is not what it was, in the stream of events."""

    event: Literal["group"] = "group"
    job: str


class GroupList(BaseModel):
    """How far a job is in each of its groups; empty for pipelines that have none."""

    groups: list[GroupDocument]


class EventDocument(BaseModel):
    """A change in the ledger: of a task, of a job as a whole, or of a task's progress alone.

    `id` is the task's number in the ledger, `code` says for programs why an attempt ended.
    """

    event: Literal["job", "task", "progress"]
    seq: int
    at: When
    job: str
    task: str | None
    was: str | None
    now: str
    id: int | None
    step: str | None
    index: int | None
    fence: int | None
    worker: str | None
    code: str | None
    message: str | None
    progress: float | None

    @classmethod
    def of(cls, event: Event) -> EventDocument:
        kind = "task" if event.progress is None else "progress"
        return cls(
            event="job" if event.task_id is None else kind,
            seq=event.seq,
            at=timestamp(event.at_ms),
            job=event.job_key,
            task=event.task,
            was=event.was,
            now=event.now,
            id=event.task_id,
            step=event.step,
            index=event.index,
            fence=event.fence,
            worker=event.worker,
            code=event.code,
            message=event.message,
            progress=event.progress,
        )


def event_line(event: Event) -> str:
    """An event as one line of JSON, as `--jsonl` prints it."""
    return json.dumps({"v": VERSION, **EventDocument.of(event).model_dump(mode="json")})


class TaskDetails(TaskDocument):
    """A task with all that is known of it; `logs` are the paths of its attempts' logs.

    `history` has its events with a higher number than `history_after`: 0 where it is whole.
    """

    why: str
    receipt: dict[str, Any] | None
    logs: dict[str, str]
    history: list[EventDocument]
    history_after: int = 0


class OutputDocument(BaseModel):
    """A file that a job made."""

    name: str
    size_bytes: int
    sha256: str
    type: str
    step: str


class OutputList(BaseModel):
    """What a job has made so far, in the order of its tasks."""

    outputs: list[OutputDocument]


class ModelDocument(BaseModel):
    """A speech model. Of one that is not `present`, `size_bytes` is about what it will take."""

    name: str
    repository: str
    present: bool
    size_bytes: int
    path: str | None


class JobPage(BaseModel):
    """Jobs, newest first. `next` is the cursor of the page after this one, or null."""

    jobs: list[JobDocument]
    next: str | None


class TaskPage(BaseModel):
    """Tasks in the order they were added. `next` is the cursor of the page after this one."""

    tasks: list[TaskDocument]
    next: str | None


class EventPage(BaseModel):
    """Events in order. Ask again with `after=next`; at once when there is `more` by now."""

    events: list[EventDocument]
    next: int
    more: bool


class LastEvent(BaseModel):
    """The number of the newest event: where to follow from."""

    seq: int


class Retried(BaseModel):
    """How many tasks were put back, and the job as it is now."""

    put_back: int
    job: JobDocument


def _short(value: Any) -> Any:
    """A parameter's value; of a long one its size alone."""
    size_bytes = len(canonical(value).encode())
    return value if size_bytes <= PARAM_MAX_BYTES else {"elided_bytes": size_bytes}


def when(at_ms: int | None) -> str | None:
    return None if at_ms is None else timestamp(at_ms)


def _text(name: str) -> str:
    """A path as text: bytes of it that are no UTF-8 cannot be sent."""
    return name.encode(errors="replace").decode()
