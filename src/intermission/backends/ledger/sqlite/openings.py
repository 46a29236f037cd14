"""Where a claim looks: steps of jobs that may have a task for this worker, in turn.

Steps that the same workers can run are of one class, and the ready steps of a class are in the
order in which they are served. So a claim walks along what is there for it, however many other
jobs there are.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Collection, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from intermission.backends.ledger.sqlite.limit_budget import LimitBudget
from intermission.backends.ledger.sqlite.queries import SQL

_PAGE = 32
_IMPATIENT_MAX = 64
"""So many jobs that wait for a preferred worker are looked at in vain, of each class."""
_FIRST = -(2**62)

Ready = tuple[int, int, int, int, int]
"""Priority (negated, so that the highest comes first), turn, job, step, class."""


class _Class(NamedTuple):
    id: int
    code: str
    pipeline: str
    needs: str | None
    prefers: str | None


class Openings:
    """What is ready for one claim."""

    def __init__(
        self,
        db: Any,
        rooms: LimitBudget,
        offers: Collection[str],
        runs: Collection[str] | None,
    ) -> None:
        self._db = db
        rows = db.execute("SELECT id, code, pipeline, needs, prefers FROM classes")
        self._classes = {
            one.id: one
            for one in (_Class(*row) for row in rows)
            if (one.needs is None or one.needs in offers)
            and (runs is None or one.code in runs)
            and rooms.has_room(_limits_of(one))
        }
        self._waiting = {
            one.id
            for one in self._classes.values()
            if one.prefers is not None and one.prefers not in offers
        }
        self._in_vain = dict.fromkeys(self._waiting, 0)
        self._of_job: dict[int, set[int]] = {}

    def in_turn(self, jobs: Collection[str] | None) -> Iterator[tuple[int, list[int]]]:
        """Jobs with the steps to look at, the one whose turn it is first."""
        if jobs is None:
            ready = heapq.merge(*(self._of_class(id) for id in self._classes))
        else:
            ready = self._of_jobs(jobs)
        for job_id, group in groupby(ready, lambda one: one[2]):
            rows = list(group)
            self._of_job[job_id] = {row[4] for row in rows}
            yield job_id, [row[3] for row in rows]

    def found(self, job_id: int, anything: bool) -> None:
        """Whether a job that was looked at had something."""
        for id in self._of_job.pop(job_id) & self._waiting:
            self._in_vain[id] += not anything

    def _of_jobs(self, keys: Collection[str]) -> Iterator[Ready]:
        rows = self._db.execute(SQL["ready_of_jobs"], {"keys": json.dumps(list(keys))}).fetchall()
        for priority, turn, job_id, step, id in rows:
            if id in self._classes:
                yield -priority, turn, job_id, step, id

    def _of_class(self, id: int) -> Iterator[Ready]:
        """A page at a time. A job that gave something comes again at the end, and has no more."""
        last = (_FIRST, 0, 0)
        while self._in_vain.get(id, 0) < _IMPATIENT_MAX:
            values = dict(zip(("priority", "turn", "job"), last, strict=True))
            page = values | {"class": id, "limit": _PAGE}
            rows = self._db.execute(SQL["ready_of_class"], page).fetchall()
            for priority, turn, job_id, step in rows:
                last = (-priority, turn, job_id)
                yield *last, step, id
            if len(rows) < _PAGE:
                return


def _limits_of(one: _Class) -> list[str]:
    labels = [f"label:{label}" for label in (one.needs, one.prefers) if label]
    return [f"pipeline:{one.pipeline}", *labels]
