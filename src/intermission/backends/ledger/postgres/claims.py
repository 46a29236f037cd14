"""How a claim chooses: which jobs and steps are open, what limits leave room for, which tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from intermission.backends.ledger.postgres.dependencies import Dependencies
from intermission.backends.ledger.postgres.limit_budget import LimitBudget
from intermission.backends.ledger.postgres.transactions import Row
from intermission.model import PREFERENCE_MS, Lease

_OPENINGS_MIN = 32
_CAPACITY_MAX = 2**31 - 1
_EVER_MS = 2**62


class Opening(NamedTuple):
    """A step of a job that has a task to hand out."""

    job_id: int
    revision: int
    state: str
    """Of the job."""
    step: int
    since_ms: int
    """Only tasks that have waited since then."""
    any_limits: bool


class Claims(Dependencies):
    """Taking tasks, in a handful of statements however many they are."""

    def claim(
        self,
        worker: str,
        capacity: int,
        *,
        lease_ttl_s: float,
        host: str = "",
        offers: Collection[str] = (),
        runs: Collection[str] | None = None,
        jobs: Collection[str] | None = None,
        begin: bool = True,
    ) -> list[Lease]:
        capacity = min(capacity, _CAPACITY_MAX)
        wanted: dict[str, Any] = {
            "host": host,
            "offers": list(offers),
            "keys": None if jobs is None else list(jobs),
            "runs": None if runs is None else list(runs),
            "room": max(capacity, _OPENINGS_MIN),
            "ever_ms": _EVER_MS,
            "preference_ms": PREFERENCE_MS,
        }
        # Nothing is written where nothing is to be had: most claims of an idle fleet end here.
        seen, any_more = self._openings(wanted) if capacity > 0 else ([], False)
        if not seen:
            return []

        def work() -> list[Lease]:
            values = {"worker": worker, "lease_s": self._now["now_s"] + lease_ttl_s}
            values |= {"host": host, "begin": begin}
            rows: list[Row] = []
            waiting: set[int] = set()
            tried: set[int] = set()
            found, more = seen, any_more
            while found:
                tried.update(one.job_id for one in found)
                waiting.update(one.job_id for one in found if one.state != "running")
                rows += self._take(found, capacity - len(rows), values)
                if len(rows) >= capacity or not more:
                    break
                found, more = self._openings(wanted, tried)
            if rows:
                jobs = list(dict.fromkeys(row[0] for row in rows))
                self._rows("take_turns", jobs=jobs, starting=list(waiting.intersection(jobs)))
            self._in_vain = not rows
            return self._leases(rows)

        return self._change(work)

    def _openings(
        self, wanted: dict[str, Any], tried: Iterable[int] = ()
    ) -> tuple[list[Opening], bool]:
        """The next openings, in order, without the jobs tried; and whether there may be more."""
        found = [Opening(*row) for row in self._rows("openings", tried=list(tried), **wanted)]
        if len(found) < wanted["room"]:
            return found, False
        # The last job of a full list may have more steps than there was room for.
        last = found[-1].job_id
        return [one for one in found if one.job_id != last] or found, True

    def _take(self, found: Sequence[Opening], capacity: int, values: dict[str, Any]) -> list[Row]:
        """Claim from these openings, job after job, of each the oldest tasks.

        Locks come first, in an order that all changes keep, so that a claim that has locked
        tasks waits for nobody. Jobs that no limit is over are claimed from in one statement.
        """
        for one in found:
            self._job(one.job_id, one.revision)
        rooms = self._rooms(found)
        waiting = {one.job_id for one in found if one.state != "running"}
        if waiting:
            self._lock(waiting)
        rows: list[Row] = []
        for batch in self._batches(found, rooms):
            left = capacity - len(rows)
            if left <= 0:
                break
            if rooms is not None and self._is_bound(batch, rooms):
                rows += self._take_limited(batch, left, values, rooms)
            else:
                where = _where(batch, [left] * len(batch), left)
                rows += _in_order(batch, self._rows("claim", **where, **values))
        if rooms is not None:
            rooms.settle()
        return rows

    def _rooms(self, found: Sequence[Opening]) -> LimitBudget | None:
        """The limits that any of these is under, if there are any at all."""
        jobs = [self._job(one.job_id) for one in found]
        under = [(job, job.steps[one.step]) for job, one in zip(jobs, found, strict=True)]
        if found[0].any_limits or any(spec.concurrency is not None for _, spec in under):
            return LimitBudget(self._rows, self._now["now_ms"], under)
        return None

    def _batches(self, found: Sequence[Opening], rooms: LimitBudget | None) -> list[list[Opening]]:
        """Openings to be claimed from together: a limited job's alone, the others' in a row."""
        by_job: dict[int, list[Opening]] = {}
        for one in found:
            by_job.setdefault(one.job_id, []).append(one)
        batches: list[list[Opening]] = [[]]
        for of_job in by_job.values():
            if rooms is not None and self._is_bound(of_job, rooms):
                batches += [of_job, []]
            else:
                batches[-1] += of_job
        return [batch for batch in batches if batch]

    def _is_bound(self, batch: Iterable[Opening], rooms: LimitBudget) -> bool:
        jobs = ((self._job(one.job_id), one.step) for one in batch)
        return any(rooms.bind(job, job.steps[step]) for job, step in jobs)

    def _take_limited(
        self, batch: list[Opening], left: int, values: dict[str, Any], rooms: LimitBudget
    ) -> list[Row]:
        """Claim from one job, task by task as its limits allow."""
        job = self._job(batch[0].job_id)
        room = [min(left, rooms.of_step(job, job.steps[one.step])) for one in batch]
        if not any(room):
            return []
        picked = self._rows("pick", **_where(batch, room, left), host=values["host"])
        ids = [id for id, step in picked if rooms.admit(job, job.steps[step])]
        rows = self._rows("claim_picked", ids=ids, **values) if ids else []
        return _in_order(batch, rows)


def _where(batch: Sequence[Opening], rooms: list[int], capacity: int) -> dict[str, Any]:
    """Openings by column: the jobs in their order, and the steps with how many of each."""
    return {
        "jobs": list(dict.fromkeys(one.job_id for one in batch)),
        "of": [one.job_id for one in batch],
        "steps": [one.step for one in batch],
        "since_ms": [one.since_ms for one in batch],
        "rooms": rooms,
        "capacity": capacity,
    }


def _in_order(batch: Sequence[Opening], rows: list[Row]) -> list[Row]:
    """Jobs in their order, and of each the oldest task first."""
    order = {job_id: rank for rank, job_id in enumerate(one.job_id for one in batch)}
    return sorted(rows, key=lambda row: (order[row[0]], row[1]))
