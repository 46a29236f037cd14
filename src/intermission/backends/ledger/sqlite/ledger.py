"""The SQLite ledger: every change is one IMMEDIATE transaction, compare-and-set on the fence.

Which transitions are legal and that each leaves an event is enforced by triggers, so no
statement here can forget it; a batch of claims or completions, which is one commit, writes its
events by itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from intermission.backends.ledger.sqlite.connection import translated
from intermission.backends.ledger.sqlite.deletion import Deletion
from intermission.backends.ledger.sqlite.dependencies import (
    NOT_BLOCKED,
    Row,
    as_json,
    span,
    spans_of,
)
from intermission.backends.ledger.sqlite.limit_budget import LimitBudget
from intermission.backends.ledger.sqlite.openings import Openings
from intermission.backends.ledger.sqlite.queries import SQL
from intermission.engine.graph import dependants
from intermission.errors import StalePlans
from intermission.model import (
    ALONE_AFTER,
    CLAIMABLE,
    HELD,
    JOB_TRANSITIONS,
    PREFERENCE_MS,
    PROGRESS_EVERY_MS,
    Completion,
    EdgeKind,
    Failure,
    Heartbeat,
    Job,
    JobState,
    Lease,
    Limit,
    Reason,
    Receipt,
    Renewal,
    StepKind,
    StepSpec,
    Task,
    TaskRow,
    TaskState,
)
from intermission.ports.ledger import task_with

_UNFINISHED_OR_DONE = json.dumps([*CLAIMABLE, *HELD, TaskState.DONE])
_LATE = HELD | {TaskState.ABANDONED}
_EVER_MS = 2**62
SWEEP_JOBS = 50
"""So many active jobs are looked at again by each rescue, in case something was missed."""
_INPUT_LOST = "an input was lost", Reason.INPUT_LOST
_STOPPED = json.dumps([TaskState.FAILED, TaskState.CANCELLED])


class SqliteLedger(Deletion):
    """A ledger in one file. One instance per thread; open a new one after a fork."""

    def submit(self, job: Job, tasks: Iterable[Task]) -> bool:
        values = {"key": job.key, "pipeline": job.pipeline, "priority": job.priority}
        values |= {"source": job.source.uri, "spec": job.to_json(), "code": job.code}
        values |= {"begin_ms": job.not_before_ms} | self._now()
        with self._transaction():
            row = self._db.execute(SQL["insert_job"], values).fetchone()
            if row is None:
                self._update_limits(job)
                return False
            (id,) = row
            numbers = {spec.name: no for no, spec in enumerate(job.steps)}
            for no, spec in enumerate(job.steps):
                place = id, no, self._class(job, spec), spec.name
                self._db.execute(SQL["insert_step"], (*place, *_limits(spec)))
                for edge in spec.edges:
                    plan = job.step(edge.upstream).plan if edge.kind is EdgeKind.ALL else None
                    self._db.execute(
                        SQL["insert_edge"],
                        (id, no, numbers[edge.upstream], edge.kind, plan and numbers[plan]),
                    )
            self._add(id, tasks)
            self._settle(id)
            self._open_steps(id)
            return True

    def _class(self, job: Job, spec: StepSpec) -> int:
        values = {"code": job.code, "pipeline": job.pipeline, "step": spec.name}
        values |= {"needs": spec.needs, "prefers": spec.prefers}
        (id,) = self._db.execute(SQL["add_class"], values).fetchone()
        return id

    def _update_limits(self, job: Job) -> None:
        """Attempts, needs and limits are no part of a job's key: the newest word counts."""
        id = self._id(job.key)
        assert id is not None
        known = self._job(id)
        if {spec.name for spec in known.steps} != {spec.name for spec in job.steps}:
            return
        steps = tuple(job.step(spec.name) for spec in known.steps)  # as they are numbered here
        if steps != known.steps:
            spec = replace(known, steps=steps).to_json()
            sql = "UPDATE jobs SET spec = ?, revision = revision + 1 WHERE id = ?"
            self._db.execute(sql, (spec, id))
            for no, step in enumerate(steps):
                kind = self._class(known, step)
                self._db.execute(SQL["update_step"], (kind, *_limits(step), id, no))
                self._db.execute(SQL["update_ready"], (kind, id, no))
            del self._jobs[id]

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
        now = self._now()
        values = now | {"worker": worker, "lease_s": now["now_s"] + lease_ttl_s}
        values |= {"host": host, "begin": begin}
        leases: list[Lease] = []
        with self._transaction():
            self._db.execute(SQL["retries_due"], now)
            self._db.execute(SQL["jobs_due"], now)
            rooms = LimitBudget(self._db, now["now_ms"])
            openings = Openings(self._db, rooms, offers, runs)
            for id, steps in openings.in_turn(jobs):
                if len(leases) >= capacity:
                    break
                self._job(*self._db.execute(SQL["revisions"], (id,)).fetchone())
                room = capacity - len(leases)
                rows = self._claim_job(id, steps, room, frozenset(offers), values, rooms)
                if rows:
                    self._tell("leased", rows, now["now_ms"], worker)
                    self._take_turn(id, now)
                    leases += self._leases(id, rows)
                openings.found(id, bool(rows))
                for step in set(steps) - {row[3] for row in rows}:
                    self._found_none(id, step, now)
            rooms.settle()
        return leases

    def _claim_job(
        self,
        id: int,
        steps: Collection[int],
        capacity: int,
        offers: frozenset[str],
        values: dict[str, Any],
        rooms: LimitBudget,
    ) -> list[Row]:
        """Rows of these steps of a job, oldest first; no step gets more than its limit allows."""
        job = self._job(id)
        values = values | {"job": id}
        rows: list[Row] = []
        for no in steps:
            spec = job.steps[no]
            patient = spec.prefers is not None and spec.prefers not in offers
            room = {"step": no, "room": min(capacity, rooms.of_step(job, spec))}
            room["since_ms"] = values["now_ms"] - PREFERENCE_MS if patient else _EVER_MS
            if room["room"] > 0:
                rows += self._db.execute(SQL["claimable"], values | room).fetchall()
        rows = sorted(rows)[:capacity]
        if rooms:
            names = [Limit.names(job, spec) for spec in job.steps]
            rows = [row for row in rows if rooms.admit(names[row[3]])]
        for run in spans_of(row[0] for row in rows):
            self._db.execute(SQL["claim"], values | run)
        for row in rows:
            rooms.held(job, job.steps[row[3]])
        return rows

    def _take_turn(self, job_id: int, now: dict[str, Any]) -> None:
        (turn,) = self._db.execute(SQL["last_event"]).fetchone()
        values = now | {"job": job_id, "turn": turn}
        self._db.execute(SQL["job_runs"], values)
        self._db.execute(SQL["ready_turn"], values)

    def _found_none(self, job_id: int, step: int, now: dict[str, Any]) -> None:
        """A claim had nothing of a step: there is nothing, or its time has not come."""
        values = now | {"job": job_id, "step": step}
        (due,) = self._db.execute(SQL["any_due"], values).fetchone()
        if due:  # a limit, a preference or a refusal is in the way: others may have it
            return
        (due_s,) = self._db.execute(SQL["next_due"], values).fetchone()
        name = "close_step" if due_s is None else "park"
        self._db.execute(SQL[name], values | {"due_s": due_s})

    def limit(self, limit: Limit) -> None:
        with self._transaction():
            if limit.is_none:
                self._db.execute("DELETE FROM limits WHERE name = ?", (limit.name,))
                return
            values = asdict(limit) | {"tokens": limit.burst} | self._now()
            self._db.execute(SQL["set_limit"], values)

    def limits(self) -> list[Limit]:
        with translated(self.path):
            sql = "SELECT name, running, per_minute, paused FROM limits ORDER BY name"
            rows = self._db.execute(sql).fetchall()
            return [Limit(name, n, rate, bool(paused)) for name, n, rate, paused in rows]

    def _leases(self, job_id: int, rows: list[Row]) -> list[Lease]:
        job = self._job(job_id)
        names = [spec.name for spec in job.steps]
        return [
            Lease(id, fence, attempt, job.key, names[step], index, key, chunk, lost >= ALONE_AFTER)
            for id, fence, _, step, _, _, _, index, key, attempt, chunk, lost in rows
        ]

    def renew(self, worker: str, heartbeats: Sequence[Heartbeat], *, lease_ttl_s: float) -> Renewal:
        lost: set[int] = set()
        cancelled: set[int] = set()
        now = self._now()
        values = now | {"worker": worker, "lease_s": now["now_s"] + lease_ttl_s}
        values["beats"] = as_json(
            [(beat.task_id, beat.fence, beat.progress, int(beat.begun)) for beat in heartbeats]
        )
        with self._transaction():
            renewed = {id for (id,) in self._db.execute(SQL["renew"], values)}
            if any(heartbeat.progress for heartbeat in heartbeats):
                self._db.execute(SQL["tell_progress"], values | {"every_ms": PROGRESS_EVERY_MS})
            for heartbeat in heartbeats:
                if heartbeat.task_id not in renewed:
                    fate = self._db.execute(SQL["fate"], (heartbeat.task_id,)).fetchone()
                    gone = fate is not None and "cancelled" in (fate[0], fate[2])
                    (cancelled if gone else lost).add(heartbeat.task_id)
        return Renewal(frozenset(lost), frozenset(cancelled))

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        with self._transaction():
            rows = [row for one in done if one.plans for row in self._finish([one])]
            rows += self._finish([one for one in done if not one.plans])
            self._unblock_after(rows)
            for job_id in {row[2] for row in rows}:
                self._settle(job_id)
            if len(rows) == len(done):
                return [True] * len(done)
            fresh = {row[:2] for row in rows}
            return [(one.task_id, one.fence) in fresh or self._is_repeat(one) for one in done]

    def _is_repeat(self, done: Completion) -> bool:
        fate = self._db.execute(SQL["fate"], (done.task_id,)).fetchone()
        return fate is not None and fate[:2] == ("done", done.fence) and done.key in (None, fate[3])

    def _finish(self, done: Sequence[Completion]) -> list[Row]:
        """Make the tasks of those that take effect `done`; their rows as they were before."""
        now_ms = self._clock.now_ms()
        expected = {(one.task_id, one.fence): one for one in done}
        spans = spans_of(one.task_id for one in done)
        found = [row for span in spans for row in self._db.execute(SQL["can_end"], span)]
        ended = [
            (row, one)
            for row in found
            if (one := expected.get(row[:2])) is not None
            and one.key in (None, row[-1])
            and row[4] in (CLAIMABLE if one.by_receipt else _LATE)
        ]
        self._end([one for _, one in ended], now_ms)
        rows = [row for row, _ in ended]
        self._tell("done", rows, now_ms)
        for job_id, step in {row[2:4] for row in rows}:
            if self._job(job_id).steps[step].kind is StepKind.PLAN:
                self._close_plan(job_id, step, done[0])  # a plan comes alone
        return rows

    def _end(self, done: Sequence[Completion], now_ms: int) -> None:
        said = {one.result if one.receipt is None else None for one in done}
        if (
            len(said) == 1 and None not in said
        ):  # tasks without receipts that have nothing else to say
            values = {"result": done[0].result, "now_ms": now_ms}
            for span in spans_of(one.task_id for one in done):
                self._db.execute(SQL["complete_alike"], values | span)
            return
        rows = ((one.task_id, one.result, *_receipt(one.receipt), one.adopted) for one in done)
        self._each("complete", rows, now_ms)

    def expand(self, task_id: int, fence: int, key: str, tasks: Sequence[Task]) -> bool:
        with self._transaction():
            row = self._db.execute(SQL["can_expand"], (task_id, fence, key)).fetchone()
            if row is None:
                return False
            job_id, plan = row
            self._add_page(job_id, plan, tasks)
            return True

    def _add_page(self, job_id: int, plan: int, tasks: Sequence[Task]) -> None:
        changed = self._add(job_id, tasks)
        self._replanned(job_id, changed.intersection(self._mapped(job_id, plan)))
        self._open_steps(job_id)

    def _mapped(self, job_id: int, plan: int) -> list[int]:
        steps = self._job(job_id).steps
        return [no for no, spec in enumerate(steps) if spec.plan == steps[plan].name]

    def _close_plan(self, job_id: int, plan: int, completion: Completion) -> None:
        """Add what is left of a finished plan, unless another plan changed what there is to add.

        From here on, what takes all tasks of a step that is mapped over it may start.
        """
        job = self._job(job_id)
        plans = [no for no, spec in enumerate(job.steps) if spec.kind is StepKind.PLAN]
        found = self._db.execute(
            SQL["done_plans"], {"job": job_id, "plans": json.dumps(plans)}
        ).fetchall()
        done = frozenset(job.steps[no].name for (no,) in found)
        if done != completion.plans:
            raise StalePlans(
                f"{', '.join(sorted(done))} are done, not {', '.join(sorted(completion.plans))}."
            )
        self._add_page(job_id, plan, completion.tasks)
        totals = completion.totals or Counter(task.step for task in completion.tasks)
        mapped = self._mapped(job_id, plan)
        for no in mapped:
            where = {"job": job_id, "step": no, "count": totals.get(job.steps[no].name, 0)}
            surplus = self._db.execute(SQL["count_surplus"], where).fetchall()
            if surplus:
                self._db.execute(SQL["delete_surplus"], where)
                for state, n in surplus:
                    self._db.execute(SQL["add_count"], (job_id, no, state, -n))
                self._replanned(job_id, [no])
        numbers = self._numbers(job_id)
        for name in self._made_of_all(job_id, mapped):
            self._unblock(job_id, numbers[name], span(None))

    def fail(self, failures: Sequence[Failure]) -> list[TaskState | None]:
        now = self._now()
        states: list[TaskState | None] = []
        with self._transaction():
            for failure in failures:
                values = {
                    "task": failure.task_id,
                    "fence": failure.fence,
                    "key": failure.key,
                    "permanent": failure.permanent,
                    "ready_s": now["now_s"] + failure.delay_s,
                    "error": failure.error,
                    "code": failure.code,
                    "message": failure.message,
                }
                row = self._db.execute(SQL["fail"], values | now).fetchone()
                states.append(None if row is None else TaskState(row[3]))
                if row is not None and row[3] == "failed":
                    self._after_failure(*row[:3])
                elif row is not None:
                    self._open_steps(row[0])
        return states

    def release(
        self,
        leases: Iterable[tuple[int, int]],
        *,
        reason: str,
        message: str | None = None,
        host: str | None = None,
        until_s: float = 0.0,
    ) -> int:
        now = self._now()
        values = {"leases": as_json(list(leases)), "reason": reason, "message": message}
        with self._transaction():
            rows = self._db.execute(SQL["release"], now | values).fetchall()
            for job_id in {job_id for _, job_id in rows}:
                self._open_steps(job_id)
            if host is not None and rows:
                ids = as_json([id for id, _ in rows])
                refused = {"ids": ids, "host": host, "until_s": now["now_s"] + until_s}
                refused |= {"code": reason, "message": message or reason}
                self._db.execute(SQL["refuse"], refused)
                self._db.execute(SQL["count_refusals"], {"ids": ids})
            return len(rows)

    def defer(self, task_id: int, fence: int, *, token: str, timeout_s: float) -> bool:
        now = self._now()
        values = {"task": task_id, "fence": fence, "token": token}
        with self._transaction():
            lease = {"lease_s": now["now_s"] + timeout_s}
            if self._db.execute(SQL["defer"], values | now | lease).fetchone() is None:
                return False
            self._db.execute(SQL["remember_deferral"], values)
            return True

    def rescue(self, dead: Collection[str] = ()) -> int:
        with self._transaction():
            values = {"dead": json.dumps(list(dead)), "lost_max": self._lost_max}
            rows = self._db.execute(SQL["rescue"], self._now() | values).fetchall()
            for job_id, step, index, state in rows:
                if state == "failed":
                    self._after_failure(job_id, step, index)
            for job_id in {row[0] for row in rows}:
                self._open_steps(job_id)
            return len(rows) + sum(self._sweep(id) for id in self._next_to_sweep())

    def _next_to_sweep(self) -> list[int]:
        """A few active jobs, each time the next ones, and then from the start."""
        values = {"after": self._swept, "limit": SWEEP_JOBS}
        rows = self._db.execute(SQL["active_jobs"], values).fetchall()
        self._swept = rows[-1][0] if len(rows) == SWEEP_JOBS else 0
        return [id for (id,) in rows]

    def retry(self, job_key: str, task_ids: Collection[int] | None = None) -> int:
        id = self._id(job_key)
        if id is None:
            return 0
        with self._transaction():
            rows = self._db.execute(
                "SELECT step, idx FROM tasks WHERE job_id = :job "
                "AND (state = 'failed' OR state = 'cancelled') "
                "AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))",
                {"job": id, "ids": None if task_ids is None else json.dumps(list(task_ids))},
            ).fetchall()
            changed: set[int] = set()
            for step, index in rows:
                name = self._job(id).steps[step].name
                changed |= self._put_back(id, name, index, "blocked", _STOPPED)
                for dependant, at in dependants(self._job(id), name, index):
                    changed |= self._put_back(id, dependant, at, "blocked", NOT_BLOCKED)
                for dependant, at in dependants(self._job(id), name, index, through_plans=True):
                    changed |= self._put_back(id, dependant, at, "blocked", _STOPPED)
            self._restart(id, bool(changed))
            return len(changed)

    def cancel(self, job_key: str, *, reason: str) -> bool:
        id = self._id(job_key)
        if id is None:
            return False
        now_ms = self._clock.now_ms()
        with self._transaction():
            ended = self._db.execute(
                "UPDATE jobs SET state = 'cancelled', reason = ?, updated_ms = ? "
                "WHERE id = ? AND state IN ('pending', 'running', 'draining') RETURNING id",
                (reason, now_ms, id),
            ).fetchone()
            if ended is None:
                return False
            values = {"job": id, "message": reason, "now_ms": now_ms}
            self._db.execute(SQL["cancel_all"], values)
            return True

    def invalidate(self, task_ids: Collection[int], *, reason: str) -> list[TaskRow]:
        with self._transaction():
            rows = self._db.execute(
                "SELECT id, job_id, step, idx FROM tasks WHERE state = 'done' "
                "AND id IN (SELECT value FROM json_each(?)) AND job_id IN (SELECT id FROM jobs)",
                (json.dumps(list(task_ids)),),
            ).fetchall()
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
                    done = json.dumps([TaskState.DONE])
                    changed[job_id] |= self._put_back(
                        job_id, name, index, "corrupt", done, reason, Reason.CORRUPT
                    )
            spoiled: list[TaskRow] = []
            for job_id, ids in changed.items():
                self._restart(job_id, bool(ids))
                found = (task_with(self, self._job(job_id).key, id) for id in sorted(ids))
                spoiled += [row for row in found if row is not None]
            return spoiled

    def mark(self, job_key: str, state: JobState, *, reason: str | None = None) -> bool:
        before = json.dumps([was for was, after in JOB_TRANSITIONS.items() if state in after])
        with self._transaction():
            row = self._db.execute(
                "UPDATE jobs SET state = ?, reason = ?, updated_ms = ? "
                "WHERE key = ? AND state IN (SELECT value FROM json_each(?)) RETURNING id",
                (state, reason, self._clock.now_ms(), job_key, before),
            ).fetchone()
            if row is not None:
                self._db.execute("DELETE FROM ready WHERE job_id = ?", row)
                self._open_steps(row[0])
            return row is not None


def _limits(spec: StepSpec) -> tuple[Any, ...]:
    return spec.attempts, spec.needs, spec.prefers, spec.concurrency, spec.skippable


def _receipt(receipt: Receipt | None) -> tuple[str | None, str | None]:
    """A receipt's key and the files it names, as they are stored."""
    if receipt is None:
        return None, None
    refs = [(f.name, f.key, f.size_bytes, f.sha256) for f in receipt.files]
    return receipt.task_key, as_json(refs) if refs else None
