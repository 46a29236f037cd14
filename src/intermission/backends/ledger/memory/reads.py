"""The reading half of the memory ledger."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from itertools import islice

from intermission.backends.ledger.memory.graph import Graph, output
from intermission.backends.ledger.memory.tables import JobEntry, Row, Tables
from intermission.model import HELD, Event, JobRow, JobState, Lease, Output, TaskRow, TaskState
from intermission.ports.clock import Clock, SystemClock


class Reads:
    """Answers are copies made under the lock; nothing handed out changes later."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._tables = Tables()
        self._graphs: dict[int, Graph] = {}

    def close(self) -> None:
        """Nothing to give up: the object is the ledger."""

    def jobs(
        self,
        key_prefix: str = "",
        *,
        states: Collection[JobState] = (),
        pipeline: str | None = None,
        source: str | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> list[JobRow]:
        def fits(entry: JobEntry) -> bool:
            return (
                entry.job.key.startswith(key_prefix)
                and (not states or entry.state in states)
                and pipeline in (None, entry.job.pipeline)
                and source in (None, entry.job.source.uri)
                and (before is None or entry.id < before)
            )

        with self._tables.lock:
            newest = sorted(self._tables.jobs.values(), key=lambda entry: -entry.id)
            return [
                JobRow(
                    id=entry.id,
                    job=entry.job,
                    state=entry.state,
                    created_ms=entry.created_ms,
                    updated_ms=entry.updated_ms,
                    reason=entry.reason,
                    counts={
                        spec.name: counts
                        for spec in entry.job.steps
                        if (counts := self._tables.counts(entry.id, spec.name))
                    },
                )
                for entry in islice(filter(fits, newest), limit)
            ]

    def tasks(
        self, job_key: str, *, states: Collection[TaskState] = (), step: str | None = None
    ) -> Iterator[TaskRow]:
        with self._tables.lock:
            entry = self._tables.entry(job_key)
            if entry is None:
                return iter(())
            if step is None:
                rows = self._tables.of_job(entry.id, *states)
            else:
                rows = self._tables.of_step(entry.id, step, *states)
            return iter([row.seen() for row in rows])

    def receipts(self, job_key: str) -> Iterator[tuple[TaskRow, Output]]:
        with self._tables.lock:
            entry = self._tables.entry(job_key)
            if entry is None:
                return iter(())
            done = self._tables.of_job(entry.id, TaskState.DONE)
            found = [(row.seen(), output(row)) for row in done]
            return iter([(row, out) for row, out in found if out is not None and out.files])

    def outputs(self, job_key: str, step: str) -> list[Output | None]:
        with self._tables.lock:
            entry = self._tables.entry(job_key)
            return [] if entry is None else self._graph(entry.id).outputs(step)

    def deferred(self, token: str) -> Lease | None:
        with self._tables.lock:
            id = self._tables.tokens.get(token)
            row = None if id is None else self._tables.rows[id]
            return self._lease(row) if row is not None and row.state in HELD else None

    def events(self, after: int = 0, *, limit: int = 1000) -> list[Event]:
        with self._tables.lock:
            events = self._tables.events
            start = bisect_right(events, after, key=lambda event: event.seq)
            return events[start : start + limit]

    def workers(self) -> list[str]:
        with self._tables.lock:
            held = [self._tables.rows[id] for ids in self._tables.held.values() for id in ids]
            return sorted({row.worker for row in held if row.worker is not None})

    def _graph(self, job_id: int) -> Graph:
        """A job's graph, kept until its limits change."""
        if job_id not in self._graphs:
            self._graphs[job_id] = Graph(self._tables, job_id)
        return self._graphs[job_id]

    def _lease(self, row: Row) -> Lease:
        return Lease(
            task_id=row.id,
            fence=row.fence,
            attempt=row.attempts,
            job_key=self._tables.jobs[row.job_id].job.key,
            step=row.step,
            index=row.index,
            key=row.key,
            chunk=row.chunk,
            inputs=self._graph(row.job_id).inputs(row),
        )
