"""What must be true of any ledger at any time: its events explain its rows."""

from __future__ import annotations

from collections.abc import Iterator

from intermission.model import (
    JOB_TRANSITIONS,
    TRANSITIONS,
    Event,
    JobState,
    TaskState,
)
from intermission.ports.ledger import Ledger

PAGE = 500


def all_events(ledger: Ledger, after: int = 0) -> Iterator[Event]:
    """Every event above a sequence number, read page by page as a watcher does."""
    while page := ledger.events(after, limit=PAGE):
        for event in page:
            assert event.seq > after, f"{event} does not come after {after}"
            after = event.seq
            yield event


def check_history(ledger: Ledger) -> None:
    """Every step of every job and task is legal and is in the events, and nothing is missing."""
    tasks: dict[int, TaskState] = {}
    jobs: dict[str, JobState] = {}
    for event in all_events(ledger):
        if event.task_id is not None:
            _follow_task(event, tasks)
        else:
            _follow_job(event, jobs)
    for row in ledger.jobs():
        key = row.job.key
        assert jobs.get(key) == row.state, f"job {key}: events end in {jobs.get(key)}, not {row}"
        counted: dict[str, dict[TaskState, int]] = {}
        for task in ledger.tasks(key):
            if task.id in tasks:
                assert tasks[task.id] is task.state, f"the events of {task} end elsewhere"
            else:
                at_first = (TaskState.PENDING, TaskState.BLOCKED)
                assert task.state in at_first, f"{task} changed without an event"
            limit = row.job.step(task.step).attempts
            assert 0 <= task.attempts <= limit, f"{task} has more or less than its attempts"
            of_step = counted.setdefault(task.step, {})
            of_step[task.state] = of_step.get(task.state, 0) + 1
        shown = {
            step: {state: n for state, n in counts.items() if n}
            for step, counts in row.counts.items()
        }
        assert {step: counts for step, counts in shown.items() if counts} == counted


def _follow_task(event: Event, tasks: dict[int, TaskState]) -> None:
    assert event.task_id is not None
    assert event.was is not None, f"{event}: a task's event says what the task was before"
    was, now = TaskState(event.was), TaskState(event.now)
    assert now in TRANSITIONS[was], f"illegal: {event}"
    before = tasks.get(event.task_id)
    if before is None:
        assert was in (TaskState.PENDING, TaskState.BLOCKED), f"an event is missing before {event}"
    else:
        assert was is before, f"an event is missing before {event}: the task was {before}"
    tasks[event.task_id] = now


def _follow_job(event: Event, jobs: dict[str, JobState]) -> None:
    now = JobState(event.now)
    if event.was is None:
        assert now is JobState.PENDING, f"a job starts pending: {event}"
    else:
        was = JobState(event.was)
        assert now in JOB_TRANSITIONS[was], f"illegal: {event}"
        assert jobs.get(event.job_key) is was, f"an event is missing before {event}"
    jobs[event.job_key] = now
