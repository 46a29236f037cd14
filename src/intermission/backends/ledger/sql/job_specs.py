"""The specs of jobs, kept: a job never changes once submitted, but for its steps' limits."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from intermission.backends.ledger.sql.database import Database
from intermission.model import Job

JOBS_KEPT = 10_000
"""Of so many jobs the specs are kept, so that they need not be read and parsed again."""


class JobSpecs:
    """Jobs by the database's id of them."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._jobs: dict[int, tuple[int, Job]] = {}
        self._ids: dict[str, int] = {}

    def id_of(self, key: str) -> int | None:
        rows = self._db.rows("job_id", key=key)
        return rows[0][0] if rows else None

    def kept(self, key: str) -> Job | None:
        """The job with this key, if its spec is kept."""
        known = self._jobs.get(self._ids.get(key, 0))
        return None if known is None else known[1]

    def job(self, id: int, revision: int = 0) -> Job:
        """A job's spec, as it was when last read unless a newer revision is asked for."""
        known = self._jobs.get(id)
        if known is None or known[0] < revision:
            ((_, revision, spec),) = self._db.rows("job_specs", jobs=[id])
            return self.keep(id, revision, spec)
        return known[1]

    def jobs(self, revisions: Iterable[tuple[int, int]]) -> dict[int, Job]:
        """Jobs by id; those not known in their revision are read at once, if they are there."""
        found: dict[int, Job] = {}
        unknown: list[int] = []
        for id, revision in revisions:
            known = self._jobs.get(id)
            if known is None or known[0] < revision:
                unknown.append(id)
            else:
                found[id] = known[1]
        for id, revision, spec in self._db.rows("job_specs", jobs=unknown) if unknown else ():
            found[id] = self.keep(id, revision, spec)
        return found

    def newest(self, count: int) -> list[int]:
        """The jobs whose specs were kept last, or some of them."""
        return list(islice(reversed(self._jobs), count))

    def keep(self, id: int, revision: int, spec: str) -> Job:
        if len(self._jobs) >= JOBS_KEPT:
            self._jobs.clear()
            self._ids.clear()
        job = Job.from_json(spec)
        self._jobs[id] = revision, job
        self._ids[job.key] = id
        return job

    def forget(self, id: int) -> None:
        self._jobs.pop(id, None)

    def numbers(self, id: int) -> dict[str, int]:
        """The steps of a job by name, as the database numbers them."""
        return {spec.name: no for no, spec in enumerate(self.job(id).steps)}
