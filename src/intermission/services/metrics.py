"""Numbers for Prometheus, counted from the event log as it is read.

A scrape costs no query: the reader of the event log has counted before. Everything is counted from
the beginning of the log, so a server that was restarted, and every other server over the same
ledger, shows the same totals; until it has read the log to its end it shows none. A job that is
deleted stays counted until the server restarts: then the totals are lower, which Prometheus takes
for a reset.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from intermission.model import HELD, Event, Job, JobState, Reason, StepKind, TaskRow, TaskState
from intermission.ports.clock import Clock
from intermission.ports.ledger import Ledger, output_of
from intermission.services.event_log_reader import PAGE
from intermission.services.oldest_jobs import ACTIVE, READY, OldestJobs
from intermission.services.supervisor import Supervisor

LOOK_EVERY_S = 5.0
"""How often the queues are looked at."""

_OUTCOMES = frozenset(
    {
        *(TaskState.DONE, TaskState.FAILED, TaskState.RETRYING),
        *(TaskState.ABANDONED, TaskState.CORRUPT, TaskState.CANCELLED),
    }
)
_BUCKETS_S = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


@dataclass
class _Known:
    """What is remembered of a job that has not ended."""

    job: Job
    created_ms: int
    done_ms: dict[str, int] = field(default_factory=dict[str, int])
    """By step: when its last task was done. With the end of a plan the tasks of its chunks come."""


class Metrics:
    """Its own registry of metrics, fed by the thread that reads the event log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: dict[str, _Known] = {}
        self._leased_ms: dict[int, int] = {}
        self._ready_ms: dict[int, int] = {}
        self._queues: set[str] = set()
        """Pipelines that ever had a job: an empty queue is told as 0."""
        self._oldest_jobs = OldestJobs()
        self._look_at_s = 0.0
        self._counted = 0
        """The number of the last event that was counted."""
        self.is_complete = False
        """Whether the log was read to its end since the start."""
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        by_step = ("pipeline", "step")
        self._tasks = counter(
            "intermission_tasks", "Ends of attempts and of tasks", (*by_step, "outcome")
        )
        self._seconds = Histogram(
            "intermission_task_seconds",
            "From the claim of a task to its end",
            by_step,
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._lost = counter(
            "intermission_lost_seconds",
            "Time of attempts that were interrupted: drains, lost leases, slots that died",
            by_step,
        )
        self._expired = counter(
            "intermission_leases_expired", "Leases whose worker vanished", by_step
        )
        self._states = gauge("intermission_jobs", "Jobs by state", ("pipeline", "state"))
        self._oldest = gauge(
            "intermission_oldest_pending_seconds",
            "How long the task that is next in line has waited; 0 when none waits",
            ("pipeline",),
        )
        self._media = counter(
            "intermission_media_seconds",
            "How long the sources of finished jobs play, where a step that reads one says it",
            ("pipeline",),
        )
        self._seq = gauge(
            "intermission_events_read", "The number of the last event that was counted"
        )

    def heard(self, ledger: Ledger, events: Sequence[Event]) -> None:
        """Count a page of events; at the end of the log, look at who is next in line."""
        for event in events:
            if event.seq <= self._counted:
                continue
            # Before it is counted: one that cannot be must not be met again and again.
            self._counted = event.seq
            known = self._known(ledger, event.job_key)
            if known is not None:
                if event.task_id is None and event.now == JobState.DONE:
                    self._media.labels(known.job.pipeline).inc(_media_s(ledger, known.job))
                self._count(known, event)
            self._seq.set(event.seq)
        self.is_complete |= len(events) < PAGE
        now_s = self._clock.monotonic_s()
        if len(events) < PAGE and now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            self._look(ledger)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _known(self, ledger: Ledger, key: str) -> _Known | None:
        if key not in self._jobs:
            rows = ledger.jobs(key) if key else []
            if not rows:
                return None  # deleted
            self._jobs[key] = _Known(rows[0].job, rows[0].created_ms)
            self._queues.add(rows[0].job.pipeline)
        return self._jobs[key]

    def _count(self, known: _Known, event: Event) -> None:
        pipeline = known.job.pipeline
        if event.task_id is None:
            self._states.labels(pipeline, event.now).inc()
            if event.was is not None:
                self._states.labels(pipeline, event.was).dec()
            if event.now not in ACTIVE:
                del self._jobs[known.job.key]
            return
        step = event.step
        if step is None:
            return  # a task that a later plan did away with
        if event.now in READY:
            self._ready_ms[event.task_id] = event.at_ms
        else:
            self._ready_ms.pop(event.task_id, None)
        if event.now in _OUTCOMES:
            self._tasks.labels(pipeline, step, event.now).inc()
        if event.now == TaskState.DONE:
            known.done_ms[step] = event.at_ms
        if event.now == TaskState.LEASED:
            self._leased_ms[event.task_id] = event.at_ms
        elif event.now not in HELD:
            self._end(pipeline, step, event)

    def _end(self, pipeline: str, step: str, event: Event) -> None:
        leased_ms = self._leased_ms.pop(event.task_id or 0, None)
        if leased_ms is None:
            return
        took_s = max(0, event.at_ms - leased_ms) / 1000
        # The last attempt that a task had is no less lost than the others: it failed then.
        if event.now == TaskState.ABANDONED or event.code in (Reason.LOST, Reason.CRASHED):
            self._lost.labels(pipeline, step).inc(took_s)
        else:
            self._seconds.labels(pipeline, step).observe(took_s)
        if event.code == Reason.LOST:
            self._expired.labels(pipeline, step).inc()

    def _look(self, ledger: Ledger) -> None:
        """Age of the queues, by the oldest jobs that have not ended: one task of each is read."""
        now_ms = self._clock.now_ms()
        oldest_ms = dict.fromkeys(self._queues, 0)
        for row, task in self._oldest_jobs.next_in_line(ledger):
            if (known := self._jobs.get(row.job.key)) is not None:
                age_ms = now_ms - self._waiting_since(known, task)
                oldest_ms[row.job.pipeline] = max(oldest_ms.get(row.job.pipeline, 0), age_ms)
        for pipeline, age_ms in oldest_ms.items():
            self._oldest.labels(pipeline).set(age_ms / 1000)
        self._queues = set(oldest_ms)

    def _waiting_since(self, known: _Known, task: TaskRow) -> int:
        """Since when a claimable task could have been claimed.

        A task that is added ready to start leaves no event of its own: it came with its job, or
        with the end of its plan.
        """
        plan = known.job.step(task.step).plan
        came_ms = known.done_ms.get(plan or "", known.created_ms)
        return self._ready_ms.get(task.id, came_ms)


def _media_s(ledger: Ledger, job: Job) -> float:
    """How long a job's source plays: `duration_ms` in the result of a step that reads it."""
    for spec in job.steps:
        if not spec.reads_source or spec.kind is not StepKind.SINGLE:
            continue
        output = output_of(ledger, job.key, spec.name)
        result = json.loads(output.result) if output and output.result else None
        told_ms = result.get("duration_ms") if isinstance(result, dict) else None
        if isinstance(told_ms, int | float) and told_ms >= 0:
            return told_ms / 1000
    return 0.0


class ServiceMetrics(Collector):
    """How the services of the server are doing, asked at every scrape."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "intermission_service_up", "Whether a service of this server works", labels=["service"]
        )
        restarts = CounterMetricFamily(
            "intermission_service_restarts",
            "How often a service was started again after it failed",
            labels=["service"],
        )
        for service in self._supervisor.services:
            up.add_metric([service.name], float(service.error is None))
            restarts.add_metric([service.name], service.restarts)
        yield from (up, restarts)
