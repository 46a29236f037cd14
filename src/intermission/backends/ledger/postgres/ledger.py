"""The PostgreSQL ledger: every change is one transaction, compare-and-set on the fence.

Which transitions are legal and that each leaves an event is enforced by triggers in the schema,
so no statement here can forget it. They run once per statement, not per row: a batch of claims or
completions is a handful of statements. Whoever ends tasks holds the rows of their jobs, so that
of two last inputs the second sees the first; a claim holds its tasks alone and waits for none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from intermission.backends.ledger.postgres.claims import Claims
from intermission.backends.ledger.postgres.dependencies import EVERY, NOT_BLOCKED
from intermission.engine.graph import dependants
from intermission.errors import StalePlans
from intermission.model import (
    CLAIMABLE,
    HELD,
    JOB_TRANSITIONS,
    PROGRESS_EVERY_MS,
    Completion,
    EdgeKind,
    Failure,
    Heartbeat,
    Job,
    JobState,
    Limit,
    Reason,
    Renewal,
    StepKind,
    StepSpec,
    Task,
    TaskRow,
    TaskState,
    canonical,
)
from intermission.ports.ledger import task_with

_UNFINISHED_OR_DONE = [*CLAIMABLE, *HELD, TaskState.DONE]
_INPUT_LOST = "an input was lost", Reason.INPUT_LOST
_STOPPED = [TaskState.FAILED, TaskState.CANCELLED]
SWEEP_JOBS = 50
"""So many active jobs are looked at again by each rescue, in case something was missed."""
_UNFOLDED_MAX = 200
_CHANGES_KEPT_S = 86_400.0
_RENEW_PATIENCE = 1 / 12
"""Of a lease: a renewal gives up soon, because the worker must stop before its lease ends."""


class PostgresLedger(Claims):
    """A ledger in a database. One instance per thread; open a new one after a fork."""

    def submit(self, job: Job, tasks: Iterable[Task]) -> bool:
        kept = list(tasks)  # the transaction may have to be made again
        return self._change(lambda: self._submit(job, kept))

    def _submit(self, job: Job, tasks: Sequence[Task]) -> bool:
        numbers = {spec.name: no for no, spec in enumerate(job.steps)}
        edges = [
            (no, numbers[edge.upstream], edge.kind, plan and numbers[plan])
            for no, step in enumerate(job.steps)
            for edge in step.edges
            for plan in [job.step(edge.upstream).plan if edge.kind is EdgeKind.ALL else None]
        ]
        spec = job.to_json()
        rows = self._rows(
            "insert_job",
            key=job.key,
            pipeline=job.pipeline,
            code=job.code,
            source=job.source.uri,
            priority=job.priority,
            begin_ms=job.not_before_ms,
            spec=spec,
            names=list(numbers),
            **_limits(job.steps),
            **{
                name: [edge[n] for edge in edges]
                for n, name in enumerate(("steps", "upstreams", "kinds", "plans"))
            },
        )
        if not rows:
            self._update_limits(job)
            return False
        ((id,),) = rows
        self._keep(id, 0, spec)
        self._add(id, tasks)
        if not tasks:
            self._settle([id])
        return True

    def _update_limits(self, job: Job) -> None:
        """Attempts, needs and limits are no part of a job's key: the newest word counts."""
        id = self._id(job.key)
        if id is None or not self._lock([id]):
            return  # it was forgotten this instant
        known = self._job(id)
        if {spec.name for spec in known.steps} != {spec.name for spec in job.steps}:
            return
        steps = tuple(job.step(spec.name) for spec in known.steps)  # as they are numbered here
        if steps != known.steps:
            self._rows("update_spec", job=id, spec=replace(known, steps=steps).to_json())
            self._rows("update_steps", job=id, **_limits(steps))
            del self._jobs[id]

    def limit(self, limit: Limit) -> None:
        values = asdict(limit) | {"tokens": limit.burst}
        name = "drop_limit" if limit.is_none else "set_limit"
        self._change(lambda: self._rows(name, **values))

    def limits(self) -> list[Limit]:
        return [Limit(*row) for row in self._rows("limits")]

    def renew(self, worker: str, heartbeats: Sequence[Heartbeat], *, lease_ttl_s: float) -> Renewal:
        if not heartbeats:
            return Renewal()
        values = {
            "ids": [heartbeat.task_id for heartbeat in heartbeats],
            "fences": [heartbeat.fence for heartbeat in heartbeats],
            "progress": [heartbeat.progress for heartbeat in heartbeats],
            "begun": [heartbeat.begun for heartbeat in heartbeats],
        }

        def work() -> Renewal:
            lease_s = self._now["now_s"] + lease_ttl_s
            rows = self._rows("renew", **values, worker=worker, lease_s=lease_s)
            renewed = {id for (id,) in rows}
            if renewed and any(values["progress"]):
                self._rows("tell_progress", ids=list(renewed), every_ms=PROGRESS_EVERY_MS)
            missed = {*values["ids"]} - renewed
            fates = self._rows("fates", ids=list(missed)) if missed else []
            cancelled = {id for id, state, _, job, _ in fates if "cancelled" in (state, job)}
            return Renewal(frozenset(missed - cancelled), frozenset(cancelled))

        return self._change(work, hurry_s=lease_ttl_s * _RENEW_PATIENCE)

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        if not done:
            return []
        return self._change(lambda: self._complete(done))

    def _complete(self, done: Sequence[Completion]) -> list[bool]:
        self._lock_of([one.task_id for one in done])
        ended = [row for one in done if one.plans for row in self._finish([one])]
        ended += self._finish([one for one in done if not one.plans])
        indexes: dict[tuple[int, int], list[int]] = {}
        for _, _, job_id, step, index in ended:
            indexes.setdefault((job_id, step), []).append(index)
        if indexes:
            self._unblock_after(indexes)
            self._settle({job_id for job_id, _ in indexes})
        if len(ended) == len(done):
            return [True] * len(done)
        fresh = {row[:2] for row in ended}
        others = [one.task_id for one in done if (one.task_id, one.fence) not in fresh]
        fates = {row[0]: row[1:] for row in self._rows("fates", ids=others)}
        return [
            (one.task_id, one.fence) in fresh or _is_repeat(one, fates.get(one.task_id))
            for one in done
        ]

    def _finish(self, done: Sequence[Completion]) -> list[tuple[int, int, int, int, int]]:
        """(task, fence, job, step, index) of those that took effect."""
        if not done:
            return []
        rows: list[Any] = self._rows("complete", **_ends(done))
        for job_id, step in {row[2:4] for row in rows}:
            if self._job(job_id).steps[step].kind is StepKind.PLAN:
                id = next(row[0] for row in rows if row[2:4] == (job_id, step))
                self._close_plan(job_id, step, next(one for one in done if one.task_id == id))
        return rows

    def expand(self, task_id: int, fence: int, key: str, tasks: Sequence[Task]) -> bool:
        def work() -> bool:
            self._lock_of([task_id])
            rows = self._rows("can_expand", task=task_id, fence=fence, key=key)
            for job_id, plan in rows:
                self._add_page(job_id, plan, tasks)
            return bool(rows)

        return self._change(work)

    def _add_page(self, job_id: int, plan: int, tasks: Sequence[Task]) -> None:
        changed = self._add(job_id, tasks)
        self._replanned(job_id, changed.intersection(self._mapped(job_id, plan)))

    def _mapped(self, job_id: int, plan: int) -> list[int]:
        steps = self._job(job_id).steps
        return [no for no, spec in enumerate(steps) if spec.plan == steps[plan].name]

    def _close_plan(self, job_id: int, plan: int, completion: Completion) -> None:
        """Add what is left of a finished plan, unless another plan changed what there is to add.

        From here on, what takes all tasks of a step that is mapped over it may start.
        """
        job = self._job(job_id)
        plans = [no for no, spec in enumerate(job.steps) if spec.kind is StepKind.PLAN]
        found = self._rows("done_plans", job=job_id, plans=plans)
        done = frozenset(job.steps[no].name for (no,) in found)
        if done != completion.plans:
            raise StalePlans(
                f"{', '.join(sorted(done))} are done, not {', '.join(sorted(completion.plans))}."
            )
        self._add_page(job_id, plan, completion.tasks)
        totals = completion.totals or Counter(task.step for task in completion.tasks)
        mapped = self._mapped(job_id, plan)
        for no in mapped:
            count = totals.get(job.steps[no].name, 0)
            self._rows("delete_surplus", job=job_id, step=no, count=count)
            if self._rowcount > 0:
                self._replanned(job_id, [no])
        numbers = self._numbers(job_id)
        names = self._made_of_all(job_id, mapped)
        self._unblock([(job_id, numbers[name], EVERY) for name in names])

    def fail(self, failures: Sequence[Failure]) -> list[TaskState | None]:
        return self._change(lambda: self._fail(failures)) if failures else []

    def _fail(self, failures: Sequence[Failure]) -> list[TaskState | None]:
        self._lock_of([one.task_id for one in failures])
        now_s = self._now["now_s"]
        rows = self._rows(
            "fail",
            ids=[one.task_id for one in failures],
            fences=[one.fence for one in failures],
            keys=[one.key for one in failures],
            permanent=[one.permanent for one in failures],
            ready_s=[now_s + one.delay_s for one in failures],
            errors=[_clean(one.error) for one in failures],
            codes=[_clean(one.code) for one in failures],
            messages=[_clean(one.message) for one in failures],
        )
        for _, _, job_id, step, index, state in rows:
            if state == TaskState.FAILED:
                self._after_failure(job_id, step, index)
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
        if not given:
            return 0
        ids, fences = (list(column) for column in zip(*given, strict=True))
        values = {"ids": ids, "fences": fences}
        values |= {"reason": _clean(reason), "message": _clean(message)}

        def work() -> int:
            released = [id for (id,) in self._rows("release", **values)]
            if host is not None and released:
                until = self._now["now_s"] + until_s
                refused = values | {"ids": released, "host": _clean(host), "until_s": until}
                self._rows("refuse", **refused)
                self._rows("count_refusals", ids=released)
            return len(released)

        return self._change(work)

    def defer(self, task_id: int, fence: int, *, token: str, timeout_s: float) -> bool:
        def work() -> bool:
            lease_s = self._now["now_s"] + timeout_s
            values = {"task": task_id, "fence": fence, "token": token, "lease_s": lease_s}
            if not self._rows("defer", **values):
                return False
            del values["lease_s"]
            self._rows("remember_deferral", **values)
            return True

        return self._change(work)

    def rescue(self, dead: Collection[str] = ()) -> int:
        # Looked for first and locked job by job: where all is well, nothing is written.
        lost = [id for (id,) in self._rows("jobs_to_rescue", dead=list(dead))]
        changed = self._change(lambda: self._rescue(lost, list(dead))) if lost else 0
        some = [id for (id,) in self._rows("to_sweep", after=self._swept, limit=SWEEP_JOBS)]
        self._swept = some[-1] if len(some) == SWEEP_JOBS else 0
        for (id,) in self._rows("unsettled", jobs=some):
            changed += self._change(lambda id=id: sum(self._sweep(one) for one in self._lock([id])))
        for (id,) in self._rows("unfolded_jobs", jobs=some, most=_UNFOLDED_MAX):
            self._change(lambda id=id: self._tidy(id))
        return changed

    def _tidy(self, job_id: int) -> None:
        self._rows("fold_counts", jobs=self._lock([job_id]))
        self._rows("forget_changes", age_s=_CHANGES_KEPT_S)

    def _rescue(self, jobs: list[int], dead: list[str]) -> int:
        values = {"dead": dead, "lost_max": self._lost_max}
        rows = self._rows("rescue", jobs=self._lock(jobs), **values)
        for job_id, step, index, state in rows:
            if state == TaskState.FAILED:
                self._after_failure(job_id, step, index)
        return len(rows)

    def retry(self, job_key: str, task_ids: Collection[int] | None = None) -> int:
        ids = None if task_ids is None else list(task_ids)
        return self._change(lambda: self._retry(job_key, ids))

    def _retry(self, job_key: str, ids: list[int] | None) -> int:
        id = self._id(job_key)
        if id is None or not self._lock([id]):
            return 0
        job = self._job(id)
        changed: set[int] = set()
        for step, index in self._rows("stopped", job=id, ids=ids):
            name = job.steps[step].name
            changed |= self._put_back(id, name, index, "blocked", _STOPPED)
            for dependant, at in dependants(job, name, index):
                changed |= self._put_back(id, dependant, at, "blocked", NOT_BLOCKED)
            for dependant, at in dependants(job, name, index, through_plans=True):
                changed |= self._put_back(id, dependant, at, "blocked", _STOPPED)
        self._restart(id, bool(changed))
        return len(changed)

    def cancel(self, job_key: str, *, reason: str) -> bool:
        def work() -> bool:
            id = self._id(job_key)
            values = {"job": id, "message": _clean(reason)}
            if id is None or not self._rows("job_ends", **values):
                return False
            self._rows("cancel_all", **values)
            return True

        return self._change(work)

    def invalidate(self, task_ids: Collection[int], *, reason: str) -> list[TaskRow]:
        return self._change(lambda: self._spoil(list(task_ids), _clean(reason)))

    def _spoil(self, task_ids: list[int], reason: str | None) -> list[TaskRow]:
        self._lock_of(task_ids)
        rows = self._rows("done_among", ids=task_ids)
        changed: dict[int, set[int]] = {}
        for _, job_id, step, index in rows:
            name = self._job(job_id).steps[step].name
            ids = changed.setdefault(job_id, set())
            for dependant, at in dependants(self._job(job_id), name, index):
                ids |= self._put_back(
                    job_id, dependant, at, "blocked", _UNFINISHED_OR_DONE, *_INPUT_LOST
                )
        # Last, because one spoiled task may depend on another: it ends up blocked.
        for id, job_id, step, index in rows:
            if id not in changed[job_id]:
                name = self._job(job_id).steps[step].name
                done = [TaskState.DONE]
                changed[job_id] |= self._put_back(
                    job_id, name, index, "corrupt", done, reason, Reason.CORRUPT
                )
        spoiled: list[TaskRow] = []
        for job_id, ids in changed.items():
            self._restart(job_id, bool(ids))
            found = (task_with(self, self._job(job_id).key, id) for id in sorted(ids))
            spoiled += [row for row in found if row is not None]
        return spoiled

    def delete(self, job_key: str) -> bool:
        def work() -> int | None:
            id = self._id(job_key)
            if id is None or not self._lock([id]):
                return None
            self._rows("lock_claimable", job=id)
            ((held,),) = self._rows("any_held", job=id)
            if held:
                return None
            self._rows("forget", job=id)
            self._rows("forget_history", job=id)
            return id

        forgotten = self._change(work)
        self._jobs.pop(forgotten or 0, None)
        return forgotten is not None

    def mark(self, job_key: str, state: JobState, *, reason: str | None = None) -> bool:
        before = [was for was, after in JOB_TRANSITIONS.items() if state in after]
        values = {"key": job_key, "state": state, "before": before, "reason": _clean(reason)}
        return self._change(lambda: bool(self._rows("mark", **values)))


def _limits(steps: Sequence[StepSpec]) -> dict[str, list[Any]]:
    return {
        "nos": list(range(len(steps))),
        "attempts": [spec.attempts for spec in steps],
        "needs": [spec.needs for spec in steps],
        "prefers": [spec.prefers for spec in steps],
        "concurrency": [spec.concurrency for spec in steps],
        "gaps": [spec.skippable for spec in steps],
    }


def _ends(done: Sequence[Completion]) -> dict[str, list[Any]]:
    """Completions by column."""
    receipts = [one.receipt for one in done]
    files = [
        canonical([(f.name, f.key, f.size_bytes, f.sha256) for f in receipt.files])
        if receipt is not None and receipt.files
        else None
        for receipt in receipts
    ]
    return {
        "ids": [one.task_id for one in done],
        "fences": [one.fence for one in done],
        "results": [one.result for one in done],
        "receipts": [None if receipt is None else receipt.task_key for receipt in receipts],
        "files": files,
        "adopted": [one.adopted for one in done],
        "keys": [one.key for one in done],
        "by_receipt": [one.by_receipt for one in done],
    }


def _is_repeat(done: Completion, fate: tuple[Any, ...] | None) -> bool:
    if fate is None:
        return False
    state, fence, _, key = fate
    return (state, fence) == ("done", done.fence) and done.key in (None, key)


def _clean(text: str | None) -> str | None:
    """Words of other programs, without what the database cannot keep: NUL, half a character."""
    return text and text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
