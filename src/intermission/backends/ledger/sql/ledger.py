"""The ledger's changes: each is one transaction, compare-and-set on the fence.

Which transitions are legal and that each leaves an event is enforced by triggers in the database,
so no statement can forget it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from intermission.backends.ledger.sql.claims import Claim
from intermission.backends.ledger.sql.database import Database, Taker, Wanted
from intermission.backends.ledger.sql.graph_rules import GraphRules
from intermission.backends.ledger.sql.reads import Reads
from intermission.model import (
    JOB_TRANSITIONS,
    LOST_MAX,
    PROGRESS_EVERY_MS,
    Completion,
    EdgeKind,
    Failure,
    Heartbeat,
    Job,
    JobState,
    Lease,
    Limit,
    Renewal,
    StepKind,
    Task,
    TaskRow,
    TaskState,
)
from intermission.ports.ledger import Ask, task_with

SWEEP_JOBS = 20
"""So many active jobs are looked at again by each rescue, in case something was missed."""
_OPENINGS_MIN = 32
_SPECS_TOLD = 256
"""Of so many jobs a claim says that it has their specs."""
_CAPACITY_MAX = 2**31 - 1
_RENEW_PATIENCE = 1 / 12
"""Of a lease: a renewal gives up soon, because the worker must stop before its lease ends."""


class SqlLedger(Reads):
    """A ledger in a database. One instance per thread; open a new one after a fork."""

    def __init__(self, db: Database, *, lost_max: int = LOST_MAX) -> None:
        super().__init__(db)
        self._graph = GraphRules(db, self._specs)
        self._lost_max = lost_max
        self._swept = 0
        """The job that the last sweep ended at."""
        self._classes: dict[tuple[str, str, str | None, str | None], int] = {}

    def submit(self, job: Job, tasks: Iterable[Task]) -> bool:
        kept = list(tasks)  # the transaction may have to be made again
        return self._db.change(lambda: self._submit(job, kept))

    def _submit(self, job: Job, tasks: Sequence[Task]) -> bool:
        spec = job.to_json()
        rows = self._db.rows(
            "insert_job",
            key=job.key,
            pipeline=job.pipeline,
            code=job.code,
            source=job.source.uri,
            priority=job.priority,
            begin_ms=job.not_before_ms,
            spec=spec,
        )
        if not rows:
            self._update_limits(job)
            return False
        ((id,),) = rows
        self._db.later("insert_steps", job=id, steps=self._step_rows(job))
        self._db.later("insert_edges", job=id, edges=_edge_rows(job))
        self._specs.keep(id, 0, spec)
        self._graph.add_first(id, tasks)
        if not tasks:
            self._graph.settle([id])
        return True

    def _step_rows(self, job: Job) -> list[tuple[Any, ...]]:
        kinds = self._classes_of(job)
        return [
            (
                *(no, kinds[spec.name], spec.name, spec.attempts, spec.needs, spec.prefers),
                *(spec.concurrency, spec.skippable),
            )
            for no, spec in enumerate(job.steps)
        ]

    def _classes_of(self, job: Job) -> dict[str, int]:
        """The class of work of each step: steps that the same workers can run are of one."""
        kinds = {spec.name: (job.code, spec.name, spec.needs, spec.prefers) for spec in job.steps}
        if not self._classes.keys() >= {*kinds.values()}:
            known = self._read_classes(job.code)
            self._classes.update(known)  # those were there before this change
            if not known.keys() >= {*kinds.values()}:
                classes = [(job.pipeline, *kind) for kind in kinds.values()]
                self._db.rows("add_classes", classes=classes)
                known = self._read_classes(job.code)
            return {name: known[kind] for name, kind in kinds.items()}
        return {name: self._classes[kind] for name, kind in kinds.items()}

    def _read_classes(self, code: str) -> dict[tuple[str, str, str | None, str | None], int]:
        rows = self._db.rows("classes_of", code=code)
        return {(code, step, needs, prefers): id for id, step, needs, prefers in rows}

    def _update_limits(self, job: Job) -> None:
        """Attempts, needs and limits are no part of a job's key: the newest word counts."""
        id = self._specs.id_of(job.key)
        if id is None or not self._lock([id]):
            return  # it was deleted this instant
        known = self._specs.job(id)
        if {spec.name for spec in known.steps} != {spec.name for spec in job.steps}:
            return
        steps = tuple(job.step(spec.name) for spec in known.steps)  # as they are numbered here
        if steps != known.steps:
            now = replace(known, steps=steps)
            self._db.rows("update_spec", job=id, spec=now.to_json())
            self._db.rows("update_steps", job=id, steps=self._step_rows(now))
            self._db.rows("update_ready", job=id)
            self._specs.forget(id)

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
        if capacity <= 0:
            return []
        capacity = min(capacity, _CAPACITY_MAX)
        wanted = self._wanted(capacity, offers, runs, jobs)
        # Nothing is written where nothing is to be had: most claims of an idle fleet end here.
        found = self._db.openings(wanted, (), ())
        if not found[0]:
            return []

        def work() -> list[Lease]:
            taker = Taker(worker, host, lease_ttl_s, begin)
            claim = Claim(self._db, self._specs, wanted, capacity, taker)
            leases = claim.leases(found)
            if claim.is_in_vain:
                self._db.nothing_changed()
            return leases

        return self._db.change(work)

    def _wanted(
        self,
        capacity: int,
        offers: Collection[str],
        runs: Collection[str] | None,
        jobs: Collection[str] | None,
    ) -> Wanted:
        count = max(capacity, _OPENINGS_MIN)
        return Wanted(offers, runs, jobs, count, self._specs.newest(_SPECS_TOLD))

    def limit(self, limit: Limit) -> None:
        values = asdict(limit) | {"tokens": limit.burst}
        name = "drop_limit" if limit.is_none else "set_limit"
        self._db.change(lambda: self._db.rows(name, **values))

    def renew(self, worker: str, heartbeats: Sequence[Heartbeat], *, lease_ttl_s: float) -> Renewal:
        if not heartbeats:
            return Renewal()
        beats = [(beat.task_id, beat.fence, beat.progress, beat.begun) for beat in heartbeats]
        ids = [beat.task_id for beat in heartbeats]

        def work() -> Renewal:
            values = {"worker": worker, "lease_s": self._db.now_s + lease_ttl_s, "ids": ids}
            renewed = {id for (id,) in self._db.rows("renew", beats=beats, **values)}
            if renewed and any(beat.progress for beat in heartbeats):
                self._db.rows("tell_progress", ids=list(renewed), every_ms=PROGRESS_EVERY_MS)
            missed = {beat.task_id for beat in heartbeats} - renewed
            fates = self._db.rows("fates", ids=list(missed)) if missed else []
            cancelled = {id for id, state, _, job, _ in fates if "cancelled" in (state, job)}
            return Renewal(frozenset(missed - cancelled), frozenset(cancelled))

        return self._db.change(work, hurry_s=lease_ttl_s * _RENEW_PATIENCE)

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        return self._db.change(lambda: self._complete(done)[0]) if done else []

    def complete_and_claim(
        self, done: Sequence[Completion], ask: Ask
    ) -> tuple[list[bool], list[Lease]]:
        capacity = min(ask.capacity, _CAPACITY_MAX)

        def work() -> tuple[list[bool], list[Lease]]:
            accepted, locked = self._complete(done)
            if capacity <= 0 or not locked:
                return accepted, []
            wanted = self._wanted(capacity, ask.offers, ask.runs, ask.jobs)
            self._db.show_openings()
            openings, _ = self._db.openings(wanted, (), ())
            taker = Taker(ask.worker, ask.host, ask.lease_ttl_s, ask.begin)
            claim = Claim(self._db, self._specs, wanted, capacity, taker)
            return accepted, claim.leases_of(locked, openings)

        return self._db.change(work) if done else ([], [])

    def _complete(self, done: Sequence[Completion]) -> tuple[list[bool], set[int]]:
        """Which took effect, or had before; and the jobs of the former, which are locked."""
        self._lock_of([one.task_id for one in done])
        plans = [one for one in done if one.plans]
        ended = [row for one in plans for row in self._finish([one])]
        ended += self._finish([one for one in done if not one.plans])
        indexes: dict[tuple[int, int], list[int]] = {}
        for _, _, job_id, step, index in ended:
            indexes.setdefault((job_id, step), []).append(index)
        jobs = {job_id for job_id, _ in indexes}
        if indexes:
            self._graph.unblock_after(indexes)
            self._graph.settle(jobs)
        if len(ended) == len(done):
            return [True] * len(done), jobs
        fresh = {row[:2] for row in ended}
        others = [one.task_id for one in done if (one.task_id, one.fence) not in fresh]
        fates = {row[0]: row[1:] for row in self._db.rows("fates", ids=others)}
        accepted = [
            (one.task_id, one.fence) in fresh or _is_repeat(one, fates.get(one.task_id))
            for one in done
        ]
        return accepted, jobs

    def _finish(self, done: Sequence[Completion]) -> list[tuple[int, int, int, int, int]]:
        """(task, fence, job, step, index) of those that took effect."""
        rows = self._db.finish(done) if done else []
        for job_id, step in {row[2:4] for row in rows}:
            if self._specs.job(job_id).steps[step].kind is StepKind.PLAN:
                id = next(row[0] for row in rows if row[2:4] == (job_id, step))
                one = next(one for one in done if one.task_id == id)
                self._graph.close_plan(job_id, step, one)
        return rows

    def expand(self, task_id: int, fence: int, key: str, tasks: Sequence[Task]) -> bool:
        def work() -> bool:
            self._lock_of([task_id])
            rows = self._db.rows("can_expand", task=task_id, fence=fence, key=key)
            for (job_id,) in rows:
                self._graph.add_page(job_id, tasks)
            return bool(rows)

        return self._db.change(work)

    def fail(self, failures: Sequence[Failure]) -> list[TaskState | None]:
        return self._db.change(lambda: self._fail(failures)) if failures else []

    def _fail(self, failures: Sequence[Failure]) -> list[TaskState | None]:
        ids = [one.task_id for one in failures]
        self._lock_of(ids)
        rows = self._db.rows(
            "fail",
            ids=ids,
            failures=[
                (
                    *(one.task_id, one.fence, one.key, one.permanent),
                    *(self._db.now_s + one.delay_s, _clean(one.error)),
                    *(_clean(one.code), _clean(one.message)),
                )
                for one in failures
            ],
        )
        for _, _, job_id, step, index, state in rows:
            if state == TaskState.FAILED:
                self._graph.after_failure(job_id, step, index)
        ended = {row[:2]: TaskState(row[5]) for row in rows}
        # Taken out as it is told: the same failure twice in a batch is stale the second time.
        return [ended.pop((one.task_id, one.fence), None) for one in failures]

    def release(
        self,
        leases: Iterable[tuple[int, int]],
        *,
        reason: str,
        message: str | None = None,
        host: str | None = None,
        until_s: float = 0.0,
    ) -> int:
        given = list(leases)
        ids = [id for id, _ in given]
        values = {"reason": _clean(reason), "message": _clean(message) or _clean(reason)}

        def work() -> int:
            released = self._db.rows("release", leases=given, ids=ids, **values)
            if host is not None and released:
                until = {"host": _clean(host), "until_s": self._db.now_s + until_s}
                self._db.rows("refuse", tasks=released, **values, **until)
                self._db.rows("count_refusals", ids=[id for (id,) in released])
            return len(released)

        return self._db.change(work) if given else 0

    def defer(self, task_id: int, fence: int, *, token: str, timeout_s: float) -> bool:
        def work() -> bool:
            values = {"task": task_id, "fence": fence, "token": token}
            if not self._db.rows("defer", **values, lease_s=self._db.now_s + timeout_s):
                return False
            self._db.rows("remember_deferral", **values)
            return True

        return self._db.change(work)

    def rescue(self, dead: Collection[str] = ()) -> int:
        # Looked for first and locked job by job: where all is well, nothing is written.
        lost = [id for (id,) in self._db.rows("jobs_to_rescue", dead=list(dead))]
        changed = self._db.change(lambda: self._rescue(lost, list(dead))) if lost else 0
        some = [id for (id,) in self._db.rows("to_sweep", after=self._swept, limit=SWEEP_JOBS)]
        self._swept = some[-1] if len(some) == SWEEP_JOBS else 0
        for (id,) in self._db.rows("unsettled", jobs=some):
            changed += self._db.change(lambda id=id: sum(map(self._graph.sweep, self._lock([id]))))
        self._db.tidy(some)
        return changed

    def _rescue(self, jobs: list[int], dead: list[str]) -> int:
        values = {"dead": dead, "lost_max": self._lost_max}
        rows = self._db.rows("rescue", jobs=self._lock(jobs), **values)
        for job_id, step, index, state in rows:
            if state == TaskState.FAILED:
                self._graph.after_failure(job_id, step, index)
        return len(rows)

    def retry(self, job_key: str, task_ids: Collection[int] | None = None) -> int:
        ids = None if task_ids is None else list(task_ids)

        def work() -> int:
            id = self._specs.id_of(job_key)
            return self._graph.retry(id, ids) if id is not None and self._lock([id]) else 0

        return self._db.change(work)

    def cancel(self, job_key: str, *, reason: str) -> bool:
        def work() -> bool:
            id = self._specs.id_of(job_key)
            values = {"job": id, "message": _clean(reason)}
            if id is None or not self._db.rows("job_ends", **values):
                return False
            self._db.rows("cancel_all", **values)
            return True

        return self._db.change(work)

    def invalidate(self, task_ids: Collection[int], *, reason: str) -> list[TaskRow]:
        ids = list(task_ids)

        def work() -> list[TaskRow]:
            self._lock_of(ids)
            changed = self._graph.invalidate(ids, _clean(reason) or "")
            found = (
                task_with(self, self._specs.job(job_id).key, id)
                for job_id, some in changed.items()
                for id in sorted(some)
            )
            return [row for row in found if row is not None]

        return self._db.change(work)

    def delete(self, job_key: str) -> bool:
        id = self._specs.id_of(job_key)
        if id is None or not self._db.delete(id):
            return False
        self._specs.forget(id)
        return True

    def mark(self, job_key: str, state: JobState, *, reason: str | None = None) -> bool:
        before = [was for was, after in JOB_TRANSITIONS.items() if state in after]
        values = {"key": job_key, "state": state, "before": before, "reason": _clean(reason)}
        return self._db.change(lambda: bool(self._db.rows("mark", **values)))

    def _lock(self, jobs: Collection[int]) -> list[int]:
        """Keep others from changing these jobs; those that are still there."""
        return self._locked(self._db.rows("lock_jobs", jobs=sorted(jobs)))

    def _lock_of(self, task_ids: Sequence[int]) -> list[int]:
        return self._locked(self._db.lock_jobs_of(task_ids))

    def _locked(self, rows: Sequence[tuple[Any, ...]]) -> list[int]:
        return list(self._specs.jobs(rows))


def _edge_rows(job: Job) -> list[tuple[Any, ...]]:
    numbers = {spec.name: no for no, spec in enumerate(job.steps)}
    return [
        (no, numbers[edge.upstream], edge.kind, plan and numbers[plan])
        for no, spec in enumerate(job.steps)
        for edge in spec.edges
        for plan in [job.step(edge.upstream).plan if edge.kind is EdgeKind.ALL else None]
    ]


def _is_repeat(done: Completion, fate: tuple[Any, ...] | None) -> bool:
    if fate is None:
        return False
    state, fence, _, key = fate
    return (state, fence) == ("done", done.fence) and done.key in (None, key)


def _clean(text: str | None) -> str | None:
    """Words of other programs, without what a database cannot keep: NUL, half a character."""
    return text and text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
