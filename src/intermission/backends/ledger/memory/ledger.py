"""The memory ledger: the port in plain Python, to be read beside its contract.

One object is the whole ledger; every thread may call it, because each call is one transaction
under one lock. It keeps nothing when the process ends and is no place for real work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from intermission.backends.ledger.memory.changes import STOPPED, Changes
from intermission.backends.ledger.memory.tables import LIVE, JobEntry, Row
from intermission.errors import StalePlans
from intermission.model import (
    CLAIMABLE,
    FINISHED,
    HELD,
    JOB_TRANSITIONS,
    PREFERENCE_MS,
    PROGRESS_EVERY_MS,
    Completion,
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


class MemoryLedger(Changes):
    """The reference ledger."""

    def submit(self, job: Job, tasks: Iterable[Task]) -> bool:
        now_ms = self._clock.now_ms()
        with self._tables.transaction():
            known = self._tables.entry(job.key)
            if known is not None:
                self._update_limits(known, job)
                return False
            entry = JobEntry(self._tables.new_id(), job, JobState.PENDING, now_ms, now_ms)
            self._tables.put_job(entry)
            self._tables.log(now_ms, entry.id, None, JobState.PENDING)
            self._insert(entry.id, tasks)
            self._settle(entry.id)
            return True

    def _update_limits(self, entry: JobEntry, job: Job) -> None:
        """What a step may use is no part of a job's identity: the newest word counts."""
        now = {spec.name: spec for spec in job.steps}
        if now.keys() != {spec.name for spec in entry.job.steps}:
            return
        steps = tuple(
            replace(
                spec,
                attempts=now[spec.name].attempts,
                needs=now[spec.name].needs,
                prefers=now[spec.name].prefers,
                concurrency=now[spec.name].concurrency,
            )
            for spec in entry.job.steps
        )
        self._tables.put_job(replace(entry, job=replace(entry.job, steps=steps)))
        self._graphs.pop(entry.id, None)

    def claim(
        self,
        worker: str,
        capacity: int,
        *,
        lease_ttl_s: float,
        can: Collection[str] = (),
        jobs: Collection[str] | None = None,
    ) -> list[Lease]:
        leases: list[Lease] = []
        with self._tables.transaction():
            entries = [self._tables.jobs[id] for id in self._tables.live]
            entries.sort(key=lambda entry: (-entry.job.priority, entry.turn, entry.id))
            for entry in entries:
                if jobs is not None and entry.job.key not in jobs:
                    continue
                if entry.job.not_before_ms > self._clock.now_ms():
                    continue
                while len(leases) < capacity and (row := self._next(entry, can)) is not None:
                    self._set_job(self._tables.jobs[entry.id], JobState.RUNNING)
                    leases.append(self._lease(self._take(row, worker, lease_ttl_s)))
                    turn = self._tables.last_seq
                    self._tables.put_job(replace(self._tables.jobs[entry.id], turn=turn))
        return leases

    def _next(self, entry: JobEntry, can: Collection[str]) -> Row | None:
        """The oldest task of a job that this worker may take."""
        oldest: list[int] = []
        for spec in entry.job.steps:
            held = self._tables.held[entry.job.pipeline, spec.name]
            if spec.needs is not None and spec.needs not in can:
                continue
            if spec.concurrency is not None and len(held) >= spec.concurrency:
                continue
            if not all(self._has_room(name) for name in Limit.names(entry.job, spec)):
                continue
            if spec.prefers is not None and spec.prefers not in can:
                id = self._longest_waiting(entry.id, spec.name)
            else:
                id = self._tables.first_claimable(entry.id, spec.name, self._clock.monotonic_s())
            if id is not None:
                oldest.append(id)
        return self._tables.rows[min(oldest)] if oldest else None

    def _longest_waiting(self, job_id: int, step: str) -> int | None:
        """The oldest task that waited in vain for a worker that its step prefers."""
        since_ms, now_s = self._clock.now_ms() - PREFERENCE_MS, self._clock.monotonic_s()
        rows = self._tables.of_step(job_id, step, *CLAIMABLE)
        waited = (row.id for row in rows if row.since_ms <= since_ms and row.ready_s <= now_s)
        return next(waited, None)

    def limit(self, limit: Limit) -> None:
        with self._tables.transaction():
            self._tables.limits.pop(limit.name, None)
            if not limit.is_none:
                self._tables.limits[limit.name] = limit, limit.burst, self._clock.now_ms()

    def limits(self) -> list[Limit]:
        with self._tables.transaction():
            return [limit for _, (limit, _, _) in sorted(self._tables.limits.items())]

    def _has_room(self, name: str) -> bool:
        if name not in self._tables.limits:
            return True
        limit = self._tables.limits[name][0]
        if limit.paused:
            return False
        if limit.running is not None:
            held = (self._tables.rows[id] for ids in self._tables.held.values() for id in ids)
            if sum(name in self._limit_names(row) for row in held) >= limit.running:
                return False
        return limit.per_minute is None or self._tokens(name) >= 1

    def _tokens(self, name: str) -> float:
        limit, tokens, filled_ms = self._tables.limits[name]
        minutes = (self._clock.now_ms() - filled_ms) / 60_000
        return min(limit.burst, tokens + max(0.0, minutes) * (limit.per_minute or 0.0))

    def _limit_names(self, row: Row) -> tuple[str, ...]:
        job = self._tables.jobs[row.job_id].job
        return Limit.names(job, job.step(row.step))

    def _take(self, row: Row, worker: str, lease_ttl_s: float) -> Row:
        for name in self._limit_names(row):
            if name in self._tables.limits:
                left = self._tokens(name) - 1
                limit = self._tables.limits[name][0]
                self._tables.limits[name] = limit, left, self._clock.now_ms()
        return self._move(
            row,
            TaskState.LEASED,
            fence=row.fence + 1,
            attempts=row.attempts + 1,
            worker=worker,
            progress=0.0,
            expires_s=self._clock.monotonic_s() + lease_ttl_s,
            started_ms=self._clock.now_ms(),
            ended_ms=None,
            ready_ms=None,
        )

    def renew(self, worker: str, heartbeats: Sequence[Heartbeat], *, lease_ttl_s: float) -> Renewal:
        lost: set[int] = set()
        cancelled: set[int] = set()
        expires_s = self._clock.monotonic_s() + lease_ttl_s
        with self._tables.transaction():
            for heartbeat in heartbeats:
                row = self._current(heartbeat.task_id, heartbeat.fence)
                if row is None:
                    (cancelled if self._is_cancelled(heartbeat.task_id) else lost).add(
                        heartbeat.task_id
                    )
                elif row.token is not None:
                    # A beat that crossed its task's deferral on the way must not shorten it.
                    self._progressed(self._move(row, TaskState.RUNNING), heartbeat.progress)
                else:
                    changes = {"worker": worker, "expires_s": expires_s}
                    self._progressed(
                        self._move(row, TaskState.RUNNING, **changes), heartbeat.progress
                    )
        return Renewal(frozenset(lost), frozenset(cancelled))

    def _progressed(self, row: Row, progress: float) -> None:
        """It never goes back within an attempt; now and then it is worth an event."""
        row = self._move(row, row.state, progress=max(row.progress, progress))
        now_ms, told = self._clock.now_ms(), round(row.progress * 100)
        if told not in (0, row.told) and not 0 <= now_ms - row.told_ms < PROGRESS_EVERY_MS:
            row = self._move(row, row.state, told=told, told_ms=now_ms)
            states = row.state, row.state
            self._tables.log(now_ms, row.job_id, *states, row=row, progress=row.progress)

    def _is_cancelled(self, task_id: int) -> bool:
        row = self._tables.rows.get(task_id)
        return row is not None and (
            row.state is TaskState.CANCELLED
            or self._tables.jobs[row.job_id].state is JobState.CANCELLED
        )

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        with self._tables.transaction():
            ended: list[Row] = []
            accepted = [self._complete(completion, ended) for completion in done]
            self._after(ended)
            return accepted

    def _complete(self, completion: Completion, ended: list[Row]) -> bool:
        ids = completion.task_id, completion.fence, completion.key
        row = self._current(*ids)
        if row is None:
            return self._told(*ids) is TaskState.DONE
        graph = self._graph(row.job_id)
        is_plan = graph.spec(row).kind is StepKind.PLAN
        plans = graph.done_plans() | {row.step}
        if is_plan and completion.plans != plans:
            raise StalePlans(
                f"the tasks of plan {row.step} were computed from the plans "
                f"{sorted(completion.plans)}, but {sorted(plans)} are done.",
                remedy="Compute the tasks again and complete again.",
            )
        row = self._move(
            row,
            TaskState.DONE,
            result=completion.result,
            receipt=completion.receipt,
            adopted=completion.adopted,
            ended_ms=self._clock.now_ms(),
            error=None,
            message=None,
            token=None,
        )
        ended.append(row)
        if is_plan:
            self._replan(row, completion.tasks)
        return True

    def _replan(self, plan: Row, tasks: Iterable[Task]) -> None:
        """Add what a plan found. What it found before and no longer finds is removed."""
        graph = self._graph(plan.job_id)
        wanted = list(tasks)
        places = {(task.step, task.index) for task in wanted}
        surplus = [
            row
            for spec in graph.specs.values()
            if spec.plan == plan.step
            for row in self._tables.of_step(plan.job_id, spec.name)
            if (row.step, row.index) not in places
        ]
        # Who needs a task that came, went or is another now must not run on what was there
        # before, even while another plan keeps its own new task from being named.
        stale = {row.id for row in graph.dependants(surplus)}
        for row in surplus:
            self._tables.drop(row)
        fresh = self._insert(plan.job_id, wanted)
        stale |= {row.id for row in graph.dependants(self._tables.rows[id] for id in fresh)}
        self._unsettle(plan.job_id, stale - fresh, message=f"{plan.step} planned otherwise")
        self._sweep(plan.job_id)

    def fail(self, failures: Sequence[Failure]) -> list[TaskState | None]:
        with self._tables.transaction():
            return [self._fail(failure) for failure in failures]

    def _fail(self, failure: Failure) -> TaskState | None:
        ids = failure.task_id, failure.fence, failure.key
        row = self._current(*ids)
        if row is None:
            told = self._told(*ids)
            return told if told in (TaskState.RETRYING, TaskState.FAILED) else None
        if failure.permanent or row.attempts >= self._graph(row.job_id).spec(row).attempts:
            self._stop(row, failure.error, failure.message)
            return TaskState.FAILED
        self._move(
            row,
            TaskState.RETRYING,
            error=failure.error,
            message=failure.message,
            token=None,
            ended_ms=self._clock.now_ms(),
            ready_ms=self._clock.now_ms() + round(failure.delay_s * 1000),
            ready_s=self._clock.monotonic_s() + failure.delay_s,
        )
        return TaskState.RETRYING

    def release(self, leases: Iterable[tuple[int, int]], *, reason: str) -> int:
        released = 0
        with self._tables.transaction():
            for task_id, fence in leases:
                row = self._current(task_id, fence)
                if row is None or row.state not in HELD:
                    continue
                # Never below zero: a late holder may renew and be released a second time.
                attempts = max(row.attempts - 1, 0)
                self._move(row, TaskState.ABANDONED, attempts=attempts, message=reason, token=None)
                released += 1
        return released

    def defer(self, task_id: int, fence: int, *, token: str, timeout_s: float) -> bool:
        with self._tables.transaction():
            row = self._current(task_id, fence)
            if row is None or row.state not in HELD:
                return False
            expires_s = self._clock.monotonic_s() + timeout_s
            self._move(row, TaskState.RUNNING, worker=None, token=token, expires_s=expires_s)
            return True

    def rescue(self, dead: Collection[str] = ()) -> int:
        with self._tables.transaction():
            before = len(self._tables.events)
            now_s = self._clock.monotonic_s()
            held = sorted(id for ids in self._tables.held.values() for id in ids)
            for id in held:
                row = self._tables.rows[id]  # read now: one that failed may have cancelled it
                alive = now_s < row.expires_s and row.worker not in dead
                if alive or row.state not in HELD:
                    continue
                who = f"worker {row.worker}" if row.worker else "whoever it was deferred to"
                if row.attempts < self._graph(row.job_id).spec(row).attempts:
                    self._move(row, TaskState.ABANDONED, message=f"{who} vanished", token=None)
                else:
                    message = f"{who} vanished, as in every attempt before"
                    self._stop(row, "SlotDied", message)
            for job_id in list(self._tables.live):
                self._sweep(job_id)
                self._settle(job_id)
            return self._changed_since(before)

    def retry(self, job_key: str, task_ids: Collection[int] | None = None) -> int:
        with self._tables.transaction():
            entry = self._tables.entry(job_key)
            if entry is None:
                return 0
            graph = self._graph(entry.id)
            before = len(self._tables.events)
            asked = [
                row
                for row in self._tables.of_job(entry.id, *STOPPED)
                if task_ids is None or row.id in task_ids
            ]
            wanted = {row.id for row in asked}
            for row in graph.dependants(asked, through_plans=True):
                if row.state is TaskState.CANCELLED:
                    wanted.add(row.id)
            revived = self._revive(entry.id, wanted)
            dependants = graph.dependants(self._tables.rows[id] for id in revived)
            self._unsettle(entry.id, {row.id for row in dependants}, message="an input runs again")
            self._sweep(entry.id)
            changed = self._changed_since(before)
            if changed:
                self._set_job(entry, JobState.RUNNING)
            return changed

    def cancel(self, job_key: str, *, reason: str) -> bool:
        with self._tables.transaction():
            entry = self._tables.entry(job_key)
            if entry is None or entry.state not in LIVE:
                return False
            for row in self._tables.of_job(entry.id):
                if row.state not in FINISHED:
                    self._cancel(row, reason)
            self._set_job(entry, JobState.CANCELLED, reason)
            return True

    def invalidate(self, task_ids: Collection[int], *, reason: str) -> list[TaskRow]:
        with self._tables.transaction():
            known = [self._tables.rows[id] for id in task_ids if id in self._tables.rows]
            lost = [row for row in known if row.state is TaskState.DONE]
            changed: set[int] = set()
            for job_id in {row.job_id for row in lost}:
                own = [row for row in lost if row.job_id == job_id]
                dependants = {row.id for row in self._graph(job_id).dependants(own)}
                changed |= self._unsettle(job_id, dependants, message=reason)
                for row in own:
                    if row.id not in dependants:
                        changed.add(self._reset(row, TaskState.CORRUPT, message=reason).id)
                self._set_job(self._tables.jobs[job_id], JobState.RUNNING)
                self._sweep(job_id)  # a fan-in may need nothing but gaps of what was lost
                self._settle(job_id)
            return [self._tables.rows[id].seen() for id in sorted(changed)]

    def delete(self, job_key: str) -> bool:
        with self._tables.transaction():
            entry = self._tables.entry(job_key)
            if entry is None or self._tables.of_job(entry.id, *HELD):
                return False
            self._tables.drop_job(entry)
            return True

    def mark(self, job_key: str, state: JobState, *, reason: str | None = None) -> bool:
        with self._tables.transaction():
            entry = self._tables.entry(job_key)
            if entry is None or state not in JOB_TRANSITIONS[entry.state]:
                return False
            self._set_job(entry, state, reason)
            return True
