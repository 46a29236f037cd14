"""How a claim chooses: which steps of jobs are open, what limits leave room for, which tasks.

Steps that the same workers can run are of one class, and the ready steps of a class are in the
order in which they are served. So a claim walks along what is there for it, however many other
jobs there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby, takewhile
from operator import itemgetter

from intermission.backends.ledger.sql.database import (
    Database,
    Opening,
    Openings,
    Request,
    Row,
    Taker,
    Wanted,
)
from intermission.backends.ledger.sql.job_specs import JobSpecs
from intermission.backends.ledger.sql.limit_budget import LimitBudget
from intermission.model import ALONE_AFTER, PREFERENCE_MS, Job, Lease, StepKind, StepSpec

_EVER_MS = 2**62
_PLACE = itemgetter(0, 4)
"""The job and the step of a row."""
_EMPTY_MAX = 8
"""So many steps without a task are passed by; a claim that finds more, or nothing, closes them."""
_IN_VAIN_MAX = 64
"""So many jobs that wait for a preferred worker are looked at in vain, of each class."""


class Claim:
    """One claim: what it has, and where it looked. It runs within a change."""

    def __init__(
        self, db: Database, specs: JobSpecs, wanted: Wanted, capacity: int, taker: Taker
    ) -> None:
        self._db = db
        self._specs = specs
        self._wanted = wanted
        self._capacity = capacity
        self._taker = taker
        self._rows: list[Row] = []
        self._tried: dict[int, Opening] = {}
        self._full: set[int] = set()
        """Classes of work that nothing more is claimed of."""
        self._in_vain: Counter[int] = Counter()
        self._empty: list[tuple[int, int]] = []

    def leases(self, found: Openings) -> list[Lease]:
        """Take tasks, first from these."""
        openings, more = found
        while openings:
            self._tried.update((one.job_id, one) for one in openings)
            self._take(openings)
            if self._left <= 0 or not more:
                break
            # Twice as many: what was tried is passed by again.
            self._wanted = self._wanted._replace(count=2 * self._wanted.count)
            openings, more = self._db.openings(self._wanted, self._tried, self._full)
        if self._rows:
            jobs = list(dict.fromkeys(row[0] for row in self._rows))
            starting = [id for id in jobs if self._tried[id].state != "running"]
            self._db.take_turns(jobs, starting, self._emptied())
        if self._empty and (not self._rows or len(self._empty) >= _EMPTY_MAX):
            # Last, because whoever makes a task claimable waits for it.
            self._db.close_openings(sorted(self._empty))
        return self._leases()

    @property
    def is_in_vain(self) -> bool:
        """Whether it has changed nothing."""
        return not self._rows and not self._empty

    def leases_of(self, locked: Collection[int], openings: Sequence[Opening]) -> list[Lease]:
        """Take tasks of jobs that the change has locked, as far as it is their turn.

        Only where no limit has to be locked: those are locked before jobs.
        """
        own = list(takewhile(lambda one: one.job_id in locked and not one.any_limits, openings))
        if any(self._step(one)[1].concurrency is not None for one in own):
            return []
        return self.leases((own, False))

    def _emptied(self) -> list[tuple[int, int]]:
        """Steps of one task, which was taken: nothing else can be there."""
        return [
            (job_id, step)
            for job_id, step in dict.fromkeys(map(_PLACE, self._rows))
            if self._specs.job(job_id).steps[step].kind is not StepKind.MAP
        ]

    @property
    def _left(self) -> int:
        return self._capacity - len(self._rows)

    def _take(self, found: Sequence[Opening]) -> None:
        """Claim from these openings, job after job, of each the oldest tasks.

        Locks come first, in an order that all changes keep, so that a claim that has locked
        tasks waits for nobody. Jobs that no limit is over are claimed from together.
        """
        for one in {one.job_id: one for one in found if one.spec is not None}.values():
            self._specs.keep(one.job_id, one.revision, one.spec or "")
        known = self._specs.jobs({(one.job_id, one.revision) for one in found})
        found = [one for one in found if one.job_id in known]  # others were deleted this instant
        budget = self._budget(found)
        waiting = {one.job_id for one in found if one.state != "running"}
        if waiting:
            self._db.later("lock_jobs", jobs=sorted(waiting))
        for bound, batch in self._batches(found, budget):
            if self._left <= 0:
                break
            looked = self._requests(batch, budget if bound else None)
            before = len(self._rows)
            if looked and bound and budget is not None:
                picked = self._db.pick(looked, self._left, self._taker.host)
                job = self._specs.job(batch[0].job_id)
                admitted = [row for row in picked if budget.admit(job, job.steps[row[1]])]
                rows = self._db.lease(admitted, self._taker) if admitted else []
            else:
                rows = self._db.take(looked, self._left, self._taker) if looked else []
            order = {id: rank for rank, id in enumerate(one.job_id for one in batch)}
            self._rows += sorted(rows, key=lambda row: (order[row[0]], row[1]))
            self._note(batch, looked, self._rows[before:])
        if budget is not None:
            budget.settle()
            self._full.update(one.kind for one in found if budget.is_full(*self._step(one)))

    def _requests(self, batch: Iterable[Opening], budget: LimitBudget | None) -> list[Request]:
        found: list[Request] = []
        for one in batch:
            since_ms = self._db.now_ms - PREFERENCE_MS if one.is_waiting else _EVER_MS
            room = self._left if budget is None else budget.room(*self._step(one))
            if room > 0:
                found.append(Request(one.job_id, one.step, min(room, self._left), since_ms))
        return found

    def _note(self, batch: Sequence[Opening], looked: list[Request], rows: list[Row]) -> None:
        """Remember where nothing was, unless the claim ended before it was looked at."""
        taken = set(map(_PLACE, rows))
        places = {(one.job_id, one.step) for one in looked} - taken
        if self._left > 0:
            self._empty += places
        for one in batch:
            if one.is_waiting and (one.job_id, one.step) in places:
                self._in_vain[one.kind] += 1
                if self._in_vain[one.kind] >= _IN_VAIN_MAX:
                    self._full.add(one.kind)

    def _budget(self, found: Sequence[Opening]) -> LimitBudget | None:
        """The limits that any of these is under, if there are any at all."""
        under = [self._step(one) for one in found]
        any_limits = any(one.any_limits for one in found)
        if any_limits or any(spec.concurrency is not None for _, spec in under):
            return LimitBudget(self._db, under)
        return None

    def _batches(
        self, found: Iterable[Opening], budget: LimitBudget | None
    ) -> Iterator[tuple[bool, list[Opening]]]:
        """Openings to be claimed from together: a limited job's alone, the others' in a row."""
        free: list[Opening] = []
        for _, group in groupby(found, lambda one: one.job_id):
            of_job = list(group)
            if budget is not None and any(budget.bind(*self._step(one)) for one in of_job):
                if free:
                    yield False, free
                    free = []
                yield True, of_job
            else:
                free += of_job
        if free:
            yield False, free

    def _step(self, one: Opening) -> tuple[Job, StepSpec]:
        job = self._specs.job(one.job_id)
        return job, job.steps[one.step]

    def _leases(self) -> list[Lease]:
        names: dict[tuple[int, int], tuple[str, str]] = {}
        for job_id, step in set(map(_PLACE, self._rows)):
            job = self._specs.job(job_id)
            names[job_id, step] = job.key, job.steps[step].name
        return [
            Lease(id, fence, attempt, *names[job_id, step], index, key, chunk, lost >= ALONE_AFTER)
            for job_id, id, fence, attempt, step, index, key, chunk, lost in self._rows
        ]
