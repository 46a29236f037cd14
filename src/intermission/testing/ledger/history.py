"""What must be true of any ledger at any time: its events explain its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from intermission.model import (
    JOB_TRANSITIONS,
    TRANSITIONS,
    Event,
    JobRow,
    JobState,
    TaskRow,
    TaskState,
)
from intermission.ports.ledger import Ledger, every_task

PAGE = 500


def all_events(ledger: Ledger, after: int = 0) -> Iterator[Event]:
    """Every event above a sequence number, read page by page as a watcher does."""
    while page := ledger.events(after, limit=PAGE):
        for event in page:
            assert event.seq > after, f"{event} does not come after {after}"
            after = event.seq
            yield event
        if len(page) < PAGE:
            return


def check_history(ledger: Ledger) -> None:
    """Every step of every job and task is legal and is in the events, and nothing is missing."""
    trail = Trail()
    trail.follow(ledger)
    for shown in ledger.jobs():
        trail.check(shown, list(every_task(ledger, shown.job.key)))


class Trail:
    """A ledger's events as far as they were read: where each task and job has got to."""

    def __init__(self) -> None:
        self.ends: Counter[tuple[int, int | None]] = Counter()
        """How often each (task, fence) was completed."""
        self._seq = 0
        self._tasks: dict[int, TaskState] = {}
        self._jobs: dict[str, JobState] = {}

    def follow(self, ledger: Ledger) -> list[Event]:
        """Read what is new; every step must be legal and start where the last one ended."""
        events = list(all_events(ledger, self._seq))
        for event in events:
            self._seq = event.seq
            if event.task_id is not None:
                self._follow_task(event, event.task_id)
            else:
                self._follow_job(event)
        return events

    def _follow_task(self, event: Event, task_id: int) -> None:
        assert event.was is not None, f"{event}: a task's event says what the task was before"
        was, now = TaskState(event.was), TaskState(event.now)
        if event.progress is None:
            assert now in TRANSITIONS[was], f"illegal: {event}"
        else:
            assert was is now is TaskState.RUNNING, f"progress is no transition: {event}"
        before = self._tasks.get(task_id)
        at_first = (TaskState.PENDING, TaskState.BLOCKED)
        fits = was in at_first if before is None else was is before
        assert fits, f"an event is missing before {event}: the task was {before}"
        self._tasks[task_id] = now
        if now is TaskState.DONE:
            self.ends[task_id, event.fence] += 1

    def _follow_job(self, event: Event) -> None:
        now = JobState(event.now)
        if event.was is None:
            assert now is JobState.PENDING, f"a job starts pending: {event}"
        else:
            was = JobState(event.was)
            assert now in JOB_TRANSITIONS[was], f"illegal: {event}"
            assert self._jobs.get(event.job_key) is was, f"an event is missing before {event}"
        self._jobs[event.job_key] = now

    def check(self, shown: JobRow, tasks: Iterable[TaskRow]) -> None:
        """A job and its tasks are where their events left them."""
        key = shown.job.key
        last = self._jobs.get(key)
        assert last is shown.state, f"job {key} is {shown.state}, but its events end in {last}"
        counted: dict[str, dict[TaskState, int]] = {}
        limits = {spec.name: spec.attempts for spec in shown.job.steps}
        for task in tasks:
            if task.id in self._tasks:
                last = self._tasks[task.id]
                assert last is task.state, f"{task}: its events end in {last}"
            else:
                at_first = (TaskState.PENDING, TaskState.BLOCKED)
                assert task.state in at_first, f"{task} changed without an event"
            assert 0 <= task.attempts <= limits[task.step], f"{task}: wrong attempts"
            of_step = counted.setdefault(task.step, {})
            of_step[task.state] = of_step.get(task.state, 0) + 1
        nonzero = (
            (step, {state: n for state, n in counts.items() if n})
            for step, counts in shown.counts.items()
        )
        assert {step: counts for step, counts in nonzero if counts} == counted
