"""A ledger's database in PostgreSQL, for workers on any number of machines.

Which transitions are legal and that each leaves an event is enforced by triggers in the schema,
once per statement, not per row: a batch of claims or completions is a handful of statements.
Whoever ends tasks holds the rows of their jobs, so that of two last inputs the second sees the
first; a claim holds its tasks alone and waits for none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from intermission.backends.ledger.postgres.transactions import Transactions
from intermission.backends.ledger.sql.database import (
    Opening,
    Openings,
    Request,
    Row,
    Span,
    Taker,
    Wanted,
    receipt_of,
)
from intermission.model import Completion, JobState, TaskState

_UNFOLDED_MAX = 200
_CHANGES_KEPT_S = 86_400.0


class PostgresDatabase(Transactions):
    """Connections of this process's pool, one for each statement or change."""

    def lock_jobs_of(self, task_ids: Sequence[int]) -> list[tuple[int, int]]:
        return [(id, revision) for id, revision in self.rows("lock_jobs_of_tasks", ids=task_ids)]

    def openings(
        self, wanted: Wanted, tried: Collection[int], without: Collection[int]
    ) -> Openings:
        values = {
            "keys": None if wanted.jobs is None else list({*wanted.jobs}),
            "offers": list(wanted.offers),
            "runs": None if wanted.runs is None else list(wanted.runs),
            "tried": list(tried),
            "without": list(without),
            "count": wanted.count,
            "known": list(wanted.known),
        }
        name = "openings" if wanted.jobs is None else "openings_of_jobs"
        rows = self.rows(name, **values)
        if self._tx is None and self._is_any_due(rows):
            self.change(lambda: self.rows("unpark"))
            rows = self.rows(name, **values)
        found = [Opening(*row[:-1]) for row in rows]
        if len(found) < wanted.count:
            return found, False
        # The last job of a full list may have more steps than there was room for.
        whole = [one for one in found if one.job_id != found[-1].job_id]
        if not whole:
            return self.openings(wanted._replace(count=2 * wanted.count), tried, without)
        return whole, True

    def _is_any_due(self, rows: list[Row]) -> bool:
        """Whether the time of anything that is parked has come."""
        ((due,),) = [rows[0][-1:]] if rows else self.rows("is_any_due")
        return due

    def pick(self, requests: Sequence[Request], count: int, host: str) -> list[Row]:
        jobs = list(dict.fromkeys(one.job_id for one in requests))
        return self.rows("pick", requests=requests, jobs=jobs, count=count, host=host)

    def lease(self, picked: Sequence[Row], taker: Taker) -> list[Row]:
        ids = [row[0] for row in picked]
        return self.rows("claim_picked", ids=ids, **self._lease_values(taker))

    def take(self, requests: Sequence[Request], count: int, taker: Taker) -> list[Row]:
        jobs = list(dict.fromkeys(one.job_id for one in requests))
        where = {"requests": requests, "jobs": jobs, "count": count}
        return self.rows("claim", **where, **self._lease_values(taker))

    def _lease_values(self, taker: Taker) -> dict[str, Any]:
        return taker._asdict() | {"lease_s": self.now_s + taker.lease_ttl_s}

    def take_turns(
        self, jobs: Sequence[int], starting: Collection[int], emptied: Sequence[tuple[int, int]]
    ) -> None:
        self.later("take_turns", jobs=list(jobs), starting=list(starting), emptied=emptied)

    def close_openings(self, empty: Sequence[tuple[int, int]]) -> None:
        # Looked at by another statement than the one that locks, which sees what was added since.
        if locked := self.rows("lock_ready", places=empty):
            self.rows("close_ready", places=locked)

    def insert_tasks(self, job_id: int, rows: Sequence[Row], spans: dict[int, Span]) -> set[int]:
        where = {"job": job_id, "spans": [(step, *span) for step, span in spans.items()]}
        before = set(self.rows("tasks_in_spans", **where)) if spans else set()
        self.later("insert_tasks", job=job_id, rows=rows)
        after = set(self.rows("tasks_in_spans", **where)) if spans else set()
        return {step for step, _, _ in after - before}

    def finish(self, done: Sequence[Completion]) -> list[tuple[int, int, int, int, int]]:
        ended = [
            (
                one.task_id,
                one.fence,
                one.result,
                *receipt_of(one),
                one.adopted,
                one.key,
                one.by_receipt,
            )
            for one in done
        ]
        rows: list[Any] = self.rows("complete", done=ended)
        return rows

    def job_rows(self, name: str, states: Collection[JobState], **values: Any) -> list[Row]:
        return self.rows(name, states=list(states) or None, **values)

    def task_rows(
        self, job_id: int, states: Collection[TaskState], step: int | None, after: int, limit: int
    ) -> list[Row]:
        # Few are in any state but `done`: they are found by the index of their state, and sorted.
        name = "tasks_in_states" if states and TaskState.DONE not in states else "tasks"
        where = {"job": job_id, "states": list(states) or None, "step": step}
        return self.rows(name, **where, after=after, limit=limit)

    def ended(self, jobs: Sequence[int]) -> None:
        self.later("fold_counts", jobs=list(jobs))

    def tidy(self, jobs: Sequence[int]) -> None:
        for (id,) in self.rows("unfolded_jobs", jobs=list(jobs), most=_UNFOLDED_MAX):
            self.change(lambda id=id: self._fold(id))

    def _fold(self, job_id: int) -> None:
        locked = self.rows("lock_jobs", jobs=[job_id])
        self.rows("fold_counts", jobs=[id for id, _ in locked])
        self.rows("forget_changes", age_s=_CHANGES_KEPT_S)

    def delete(self, job_id: int) -> bool:
        def work() -> bool:
            if not self.rows("lock_jobs", jobs=[job_id]):
                return False
            self.rows("lock_claimable", job=job_id)
            ((held,),) = self.rows("any_held", job=job_id)
            if held:
                return False
            self.rows("forget", job=job_id)
            self.rows("forget_history", job=job_id)
            return True

        return self.change(work)
