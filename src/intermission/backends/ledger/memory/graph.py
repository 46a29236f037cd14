"""What a job's edges mean for its tasks as they stand: ready, doomed, a gap, what depends on what.

Only reads. A task is doomed when an input it needs has failed or was cancelled, so that it can
never start unless somebody retries that input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from intermission.backends.ledger.memory.tables import Row, Tables
from intermission.model import (
    Edge,
    EdgeKind,
    JobState,
    Output,
    StepKind,
    StepSpec,
    TaskState,
)

Inputs = Mapping[str, Output | tuple[Output | None, ...] | None]

_STOPPED = (TaskState.FAILED, TaskState.CANCELLED)


class Graph:
    """One job's steps, read against the tables. `job.steps` is in topological order."""

    def __init__(self, tables: Tables, job_id: int) -> None:
        self._tables = tables
        self._job_id = job_id
        self.specs = {spec.name: spec for spec in tables.jobs[job_id].job.steps}
        self.order = {name: no for no, name in enumerate(self.specs)}
        self.downstream: dict[str, list[tuple[str, EdgeKind]]] = {name: [] for name in self.specs}
        self.behind: dict[str, list[str]] = {name: [] for name in self.specs}
        """The steps whose fan-ins wait for a plan, because their inputs are mapped over it."""
        for spec in self.specs.values():
            for edge in spec.edges:
                self.downstream[edge.upstream].append((spec.name, edge.kind))
                plan = self.specs[edge.upstream].plan
                if edge.kind is EdgeKind.ALL and plan is not None:
                    self.behind[plan].append(spec.name)

    def spec(self, row: Row) -> StepSpec:
        return self.specs[row.step]

    def task(self, step: str, index: int) -> Row | None:
        return self._tables.task(self._job_id, step, index)

    def satisfied(self, row: Row) -> bool:
        """Every input of the task is there, so it may start."""
        return all(self._has(edge, row.index) for edge in self.spec(row).edges)

    def _has(self, edge: Edge, index: int) -> bool:
        if edge.kind is not EdgeKind.ALL:
            return _done(self._upstream(edge, index))
        planned = self.specs[edge.upstream].plan is None or _done(self._plan_of(edge.upstream))
        return (
            planned
            and not self._tables.any_unfinished(self._job_id, edge.upstream)
            and self._culprit(edge, index) is None
        )

    def _upstream(self, edge: Edge, index: int) -> Row | None:
        return self.task(edge.upstream, index if edge.kind is EdgeKind.SAME else 0)

    def _plan_of(self, step: str) -> Row | None:
        plan = self.specs[step].plan
        return None if plan is None else self.task(plan, 0)

    def culprit(self, row: Row) -> Row | None:
        """The ended task that dooms this one, if one does."""
        found = (self._culprit(edge, row.index) for edge in self.spec(row).edges)
        return next((row for row in found if row is not None), None)

    def _culprit(self, edge: Edge, index: int) -> Row | None:
        if edge.kind is not EdgeKind.ALL:
            upstream = self._upstream(edge, index)
            return upstream if upstream is not None and upstream.state in _STOPPED else None
        plan = self._plan_of(edge.upstream)
        if plan is not None and plan.state in _STOPPED:
            return plan
        stopped = self._tables.of_step(self._job_id, edge.upstream, *_STOPPED)
        return next((row for row in stopped if not self.is_gap(row)), None)

    def is_gap(self, row: Row) -> bool:
        """The task ended without a result, and its pipeline said that this may happen.

        A chunk's gap spreads along SAME edges; anything else that stopped a task is no gap.
        """
        if row.state is not TaskState.CANCELLED:
            return row.state is TaskState.FAILED and self.spec(row).skippable
        culprits = [(edge, self._culprit(edge, row.index)) for edge in self.spec(row).edges]
        blamed = [(edge, found) for edge, found in culprits if found is not None]
        return bool(blamed) and all(
            edge.kind is EdgeKind.SAME and self.is_gap(found) for edge, found in blamed
        )

    def ripe(self, step: str, index: int | None = None) -> list[Row]:
        """Blocked tasks of a step that may start now; with an index, that one alone."""
        if index is not None:
            row = self.task(step, index)
            if row is None or row.state is not TaskState.BLOCKED:
                return []
            return [row] if self.satisfied(row) else []
        # Edges that all tasks of the step share are looked at once, however many tasks wait.
        edges = self.specs[step].edges
        if not all(self._has(edge, 0) for edge in edges if edge.kind is not EdgeKind.SAME):
            return []
        blocked = self._tables.of_step(self._job_id, step, TaskState.BLOCKED)
        return [row for row in blocked if self.satisfied(row)]

    def waiting_for(self, row: Row) -> Iterable[tuple[str, int | None]]:
        """The steps, or single tasks of a step, that an end of this task may let start."""
        for step, kind in self.downstream[row.step]:
            yield step, row.index if kind is EdgeKind.SAME else None
        for step in self.behind[row.step]:
            yield step, None

    def dependants(self, rows: Iterable[Row], *, through_plans: bool = False) -> list[Row]:
        """Every task that needs one of these, directly or not, upstream first.

        One of the given rows is among them only if it needs another. `through_plans` adds the
        fan-ins that wait for a plan to be done, though they take nothing from it.
        """
        reached: set[int] = set()
        whole: set[str] = set()
        frontier = list(rows)
        while frontier:
            row = frontier.pop()
            behind = self.behind[row.step] if through_plans else ()
            nexts = [*self.downstream[row.step], *((step, EdgeKind.ALL) for step in behind)]
            for step, kind in nexts:
                if step in whole:
                    continue
                if kind is not EdgeKind.SAME:
                    whole.add(step)
                    found = self._tables.of_step(self._job_id, step)
                else:
                    found = [one for one in (self.task(step, row.index),) if one is not None]
                frontier += [one for one in found if one.id not in reached]
                reached.update(one.id for one in found)
        dependants = [self._tables.rows[id] for id in reached]
        return sorted(dependants, key=lambda row: (self.order[row.step], row.index))

    def inputs(self, row: Row) -> Inputs:
        """What the task's edges hand to it, by parameter."""
        inputs: dict[str, Output | tuple[Output | None, ...] | None] = {}
        for edge in self.spec(row).edges:
            if edge.kind is EdgeKind.ALL:
                inputs[edge.param] = tuple(self.outputs(edge.upstream))
            else:
                upstream = self._upstream(edge, row.index)
                inputs[edge.param] = None if upstream is None else output(upstream)
        return inputs

    def outputs(self, step: str) -> list[Output | None]:
        """A step's outputs in chunk order; None for a task that is not done."""
        places = self._tables.at[self._job_id, step]
        return [output(self._tables.rows[places[index]]) for index in sorted(places)]

    def done_plans(self) -> frozenset[str]:
        plans = (spec.name for spec in self.specs.values() if spec.kind is StepKind.PLAN)
        return frozenset(name for name in plans if _done(self.task(name, 0)))

    def outcome(self) -> JobState | None:
        """How the job ended; None while a task is unfinished.

        A task that was cancelled and is no gap leaves a hole, so such a job is never `done`.
        """
        if any(self._tables.any_unfinished(self._job_id, step) for step in self.specs):
            return None
        stopped = self._tables.of_job(self._job_id, *_STOPPED)
        holes = {row.state for row in stopped if not self.is_gap(row)}
        if TaskState.FAILED in holes:
            return JobState.FAILED
        return JobState.CANCELLED if holes else JobState.DONE


def _done(row: Row | None) -> bool:
    return row is not None and row.state is TaskState.DONE


def output(row: Row) -> Output | None:
    """What a task hands on; None unless it is done."""
    if row.state is not TaskState.DONE:
        return None
    if row.receipt is None:
        return Output(row.key, row.result)
    return Output(row.receipt.task_key, row.result, row.receipt.files)
