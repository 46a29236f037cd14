"""What waits for what: the rules by which tasks of a PostgreSQL ledger may start, stop or return.

Everything here runs inside a change of the caller's, which holds the rows of the jobs concerned:
what one transaction counts, no other can change before it ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from intermission.backends.ledger.postgres.reads import Reads
from intermission.engine.graph import dependants, made_of_all
from intermission.model import EdgeKind, Task, TaskState

NOT_BLOCKED = [state for state in TaskState if state is not TaskState.BLOCKED]
_ADD_AT_ONCE = 4096
_INDEX_MAX = 2**31 - 1

Span = tuple[int, int]
"""The chunks concerned: first and last, both included."""
EVERY: Span = (0, _INDEX_MAX)


def _span(index: int | None) -> Span:
    return EVERY if index is None else (index, index)


def _runs(indexes: Iterable[int]) -> list[Span]:
    """Indexes as spans; those of one batch mostly follow each other."""
    runs: list[Span] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], index
        else:
            runs.append((index, index))
    return runs


class Dependencies(Reads):
    """Adding tasks, and re-checking the ones that wait, after anything changed."""

    def _lock(self, jobs: Collection[int]) -> list[int]:
        """Wait for the rows of jobs; those that are still there."""
        return self._locked(self._rows("lock_jobs", jobs=list(jobs)))

    def _lock_of(self, task_ids: Collection[int]) -> list[int]:
        return self._locked(self._rows("lock_jobs_of_tasks", ids=list(task_ids)))

    def _locked(self, rows: list[tuple[Any, ...]]) -> list[int]:
        for id, revision in rows:
            self._job(id, revision)
        return [id for id, _ in rows]

    def _add(self, job_id: int, tasks: Iterable[Task]) -> set[int]:
        """Insert tasks in their order, and let those start that wait for nothing.

        The steps of which any is new, or took the place of another.
        """
        changed: set[int] = set()
        added = iter(tasks)
        while batch := list(islice(added, _ADD_AT_ONCE)):
            changed |= self._add_batch(job_id, batch)
        return changed

    def _add_batch(self, job_id: int, batch: Sequence[Task]) -> set[int]:
        numbers = self._numbers(job_id)
        where: dict[str, Span] = {}
        for name in numbers:
            indexes = [task.index for task in batch if task.step == name]
            if indexes:
                where[name] = min(indexes), max(indexes)
        states = {name: self._first_state(job_id, numbers[name]) for name in where}
        firsts, lasts = ([span[end] for span in where.values()] for end in (0, 1))
        pages = {"steps": [numbers[name] for name in where], "firsts": firsts, "lasts": lasts}
        before = set(self._rows("pages_now", job=job_id, **pages))
        self._rows(
            "insert_tasks",
            job=job_id,
            steps=[numbers[task.step] for task in batch],
            indexes=[task.index for task in batch],
            keys=[task.key for task in batch],
            chunks=[task.chunk for task in batch],
            states=[states[task.step] for task in batch],
        )
        after = set(self._rows("pages_now", job=job_id, **pages))
        self._cancel_hopeless(job_id, where.items())
        changed = {step for step, _, _ in after - before}
        job = self._job(job_id)
        waiting = [name for name in where if job.step(name).edges or numbers[name] in changed]
        self._unblock([(job_id, numbers[name], where[name]) for name in waiting])
        return changed

    def _first_state(self, job_id: int, step: int) -> str:
        """`pending` for a step whose tasks surely can start; the others are looked at later."""
        edges = self._job(job_id).steps[step].edges
        if not edges:
            return "pending"
        if any(edge.kind is not EdgeKind.ONE for edge in edges):
            return "blocked"
        ((ready,),) = self._rows("satisfied", job=job_id, step=step)
        return "pending" if ready else "blocked"

    def _unblock(self, places: Collection[tuple[int, int, Span]]) -> int:
        """Let tasks start that wait for nothing; (job, step, chunks) says where to look."""
        if not places:
            return 0
        jobs, steps, spans = zip(*places, strict=True)
        firsts, lasts = zip(*spans, strict=True)
        values = {"jobs": jobs, "steps": steps, "firsts": firsts, "lasts": lasts}
        return len(self._rows("unblock", **{name: list(value) for name, value in values.items()}))

    def _unblock_after(self, indexes: Mapping[tuple[int, int], Sequence[int]]) -> None:
        """Re-check what waited for tasks that ended, the indexes by job and step.

        A fan-in is looked at once, however many of its inputs ended.
        """
        places: dict[tuple[int, int, Span], None] = {}
        for (job_id, step), at in indexes.items():
            name = self._job(job_id).steps[step].name
            for no, spec in enumerate(self._job(job_id).steps):
                for edge in spec.edges:
                    if edge.upstream == name:
                        spans = _runs(at) if edge.kind is EdgeKind.SAME else [EVERY]
                        places.update({(job_id, no, span): None for span in spans})
        self._unblock(places)

    def _sweep(self, job_id: int) -> int:
        """Look at every blocked task of a job, in case it was missed. How many may start."""
        steps = range(len(self._job(job_id).steps))
        started = self._unblock([(job_id, step, EVERY) for step in steps])
        self._settle([job_id])
        return started

    def _after_change(self, job_id: int) -> None:
        """Tasks came or were put back: which may start, which never will, has the job ended?"""
        everywhere = [(spec.name, EVERY) for spec in self._job(job_id).steps]
        self._cancel_hopeless(job_id, everywhere)
        self._sweep(job_id)

    def _cancel_hopeless(self, job_id: int, where: Iterable[tuple[str, Span]]) -> None:
        """Cancel tasks whose inputs stopped; `where` is in the order of the graph."""
        ((stopped,),) = self._rows("any_stopped", job=job_id)
        if stopped:
            numbers = self._numbers(job_id)
            for name, (first, last) in where:
                self._rows(
                    "cancel_hopeless", job=job_id, step=numbers[name], first=first, last=last
                )

    def _settle(self, jobs: Collection[int]) -> None:
        """End the jobs that have nothing left to do."""
        ended = [id for (id,) in self._rows("settle", jobs=list(jobs))]
        if ended:
            self._rows("fold_counts", jobs=ended)

    def _after_failure(self, job_id: int, step: int, index: int) -> None:
        """Cancel what can no longer run; then see what can."""
        job = self._job(job_id)
        numbers = self._numbers(job_id)
        reached = dependants(job, job.steps[step].name, index, through_plans=True)
        self._cancel_hopeless(job_id, [(name, _span(at)) for name, at in reached])
        self._unblock([(job_id, numbers[dependant], _span(at)) for dependant, at in reached])
        self._settle([job_id])

    def _put_back(
        self,
        job_id: int,
        step: str,
        index: int | None,
        state: str,
        states: Collection[TaskState],
        message: str | None = None,
        code: str | None = None,
    ) -> set[int]:
        first, last = _span(index)
        rows = self._rows(
            "put_back",
            job=job_id,
            step=self._numbers(job_id)[step],
            first=first,
            last=last,
            state=state,
            states=list(states),
            message=message,
            code=code,
        )
        return {id for (id,) in rows}

    def _restart(self, job_id: int, changed: bool) -> None:
        if changed:
            self._rows("job_restarts", job=job_id)
            self._after_change(job_id)

    def _replanned(self, job_id: int, changed: Iterable[int]) -> None:
        """Chunks came or went: what was made of all of them, or is being made, starts again."""
        names = self._made_of_all(job_id, changed)
        for name in names:
            self._put_back(job_id, name, None, "blocked", NOT_BLOCKED)
        if names:
            self._cancel_hopeless(job_id, [(name, EVERY) for name in names])

    def _made_of_all(self, job_id: int, steps: Iterable[int]) -> list[str]:
        job = self._job(job_id)
        return made_of_all(job, [job.steps[no].name for no in steps])
