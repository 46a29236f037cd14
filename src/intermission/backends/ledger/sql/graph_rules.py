"""What waits for what: the rules by which tasks may start, stop or return.

Everything here runs inside a change of the caller's, which keeps others from changing the jobs
concerned: what one transaction counts, no other can change before it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from intermission.backends.ledger.sql.database import Database, Place, Span, spans_of
from intermission.backends.ledger.sql.job_specs import JobSpecs
from intermission.engine.graph import dependants, made_of_all
from intermission.errors import StalePlans
from intermission.model import CLAIMABLE, HELD, Completion, EdgeKind, Reason, StepKind, Task
from intermission.model import TaskState as State

_ADD_AT_ONCE = 4096
_EVERY: Span = (0, 2**31 - 1)
_NOT_BLOCKED = [state for state in State if state is not State.BLOCKED]
_UNFINISHED_OR_DONE = [*CLAIMABLE, *HELD, State.DONE]
_STOPPED = [State.FAILED, State.CANCELLED]
_INPUT_LOST = "an input was lost", Reason.INPUT_LOST


def _span(index: int | None) -> Span:
    return _EVERY if index is None else (index, index)


class GraphRules:
    """Adding tasks, and looking again at those that wait, after anything changed."""

    def __init__(self, db: Database, specs: JobSpecs) -> None:
        self._db = db
        self._specs = specs

    def add_first(self, job_id: int, tasks: Sequence[Task]) -> None:
        """Insert the tasks of a job that has none: what waits for anything waits."""
        job = self._specs.job(job_id)
        numbers = self._specs.numbers(job_id)
        states = {spec.name: State.BLOCKED if spec.edges else State.PENDING for spec in job.steps}
        for first in range(0, len(tasks), _ADD_AT_ONCE):
            rows = [
                (numbers[task.step], task.index, task.key, task.chunk, states[task.step])
                for task in tasks[first : first + _ADD_AT_ONCE]
            ]
            self._db.insert_tasks(job_id, rows, {})

    def add_page(self, job_id: int, tasks: Iterable[Task]) -> None:
        """Add what a plan found, or a part of it, and let those start that wait for nothing.

        What was made of tasks that are others now, or of fewer than there are, waits again.
        """
        added = iter(tasks)
        while batch := list(islice(added, _ADD_AT_ONCE)):
            self._add_batch(job_id, batch)

    def _add_batch(self, job_id: int, batch: Sequence[Task]) -> None:
        numbers = self._specs.numbers(job_id)
        spans: dict[int, Span] = {}
        for name, no in numbers.items():
            indexes = [task.index for task in batch if task.step == name]
            if indexes:
                spans[no] = min(indexes), max(indexes)
        states = {no: self._first_state(job_id, no) for no in spans}
        rows = [
            (no := numbers[task.step], task.index, task.key, task.chunk, states[no])
            for task in batch
        ]
        changed = self._db.insert_tasks(job_id, rows, spans)
        where = [*spans.items(), *self._send_back(job_id, {no: spans[no] for no in changed})]
        self._cancel_hopeless(job_id, sorted(where))
        steps = self._specs.job(job_id).steps
        waiting = [no for no in spans if steps[no].edges or no in changed]
        self._unblock([(job_id, no, *spans[no]) for no in waiting])

    def _send_back(self, job_id: int, changed: Mapping[int, Span]) -> list[tuple[int, Span]]:
        """Tasks of these steps are new or others: what needs them waits again. Where any does."""
        job = self._specs.job(job_id)
        numbers = self._specs.numbers(job_id)
        sent: list[tuple[int, Span]] = []
        for no, span in changed.items():
            for name, index in dependants(job, job.steps[no].name, 0):
                first, last = where = _EVERY if index is None else span  # else chunk by chunk
                place = {"job": job_id, "step": numbers[name], "first": first, "last": last}
                if self._db.rows("send_back", **place):
                    sent.append((numbers[name], where))
        return sent

    def _first_state(self, job_id: int, step: int) -> State:
        """`pending` for a step whose tasks surely can start; the others are looked at later."""
        edges = self._specs.job(job_id).steps[step].edges
        if not edges:
            return State.PENDING
        if any(edge.kind is not EdgeKind.ONE for edge in edges):
            return State.BLOCKED
        ((ready,),) = self._db.rows("satisfied", job=job_id, step=step)
        return State.PENDING if ready else State.BLOCKED

    def close_plan(self, job_id: int, plan: int, completion: Completion) -> None:
        """Add what is left of a finished plan, unless another plan changed what there is to add.

        From here on, what takes all tasks of a step that is mapped over it may start.
        """
        job = self._specs.job(job_id)
        plans = [no for no, spec in enumerate(job.steps) if spec.kind is StepKind.PLAN]
        found = self._db.rows("done_plans", job=job_id, plans=plans)
        done = frozenset(job.steps[no].name for (no,) in found)
        if done != completion.plans:
            raise StalePlans(
                f"{', '.join(sorted(done))} are done, not {', '.join(sorted(completion.plans))}."
            )
        self.add_page(job_id, completion.tasks)
        totals = completion.totals or Counter(task.step for task in completion.tasks)
        mapped = self._mapped(job_id, plan)
        for no in mapped:
            count = totals.get(job.steps[no].name, 0)
            if self._db.rows("delete_surplus", job=job_id, step=no, count=count):
                self._replanned(job_id, [no])
        self._unblock([(job_id, no, *_EVERY) for no in self._made_of_all(job_id, mapped)])

    def unblock_after(self, ended: Mapping[tuple[int, int], Collection[int]]) -> None:
        """Look again at what waited for tasks that ended: their indexes by job and step.

        A fan-in is looked at once, however many of its inputs ended.
        """
        places: dict[Place, None] = {}
        for (job_id, step), indexes in ended.items():
            steps = self._specs.job(job_id).steps
            for no, spec in enumerate(steps):
                for edge in spec.edges:
                    if edge.upstream == steps[step].name:
                        same = edge.kind is EdgeKind.SAME
                        spans = spans_of(indexes) if same else [_EVERY]
                        places.update({(job_id, no, *span): None for span in spans})
        if places:
            self._db.later("unblock", places=list(places))

    def after_failure(self, job_id: int, step: int, index: int) -> None:
        """Cancel what can no longer run; then see what can."""
        job = self._specs.job(job_id)
        reached = dependants(job, job.steps[step].name, index, through_plans=True)
        where = self._numbered(job_id, reached)
        self._cancel_hopeless(job_id, where)
        self._unblock([(job_id, no, *span) for no, span in where])
        self.settle([job_id])

    def settle(self, jobs: Collection[int]) -> None:
        """End the jobs that have nothing left to do."""
        ended = [id for (id,) in self._db.rows("settle", jobs=list(jobs))]
        if ended:
            self._db.ended(ended)

    def sweep(self, job_id: int) -> int:
        """Look at every blocked task of a job, in case it was missed. How many may start."""
        steps = range(len(self._specs.job(job_id).steps))
        started = self._unblock([(job_id, step, *_EVERY) for step in steps])
        self._db.rows("open_steps", job=job_id)
        self.settle([job_id])
        return started

    def retry(self, job_id: int, ids: list[int] | None) -> int:
        """Put back what stopped, with all that hangs on it."""
        job = self._specs.job(job_id)
        changed: set[int] = set()
        for step, index in self._db.rows("stopped_tasks", job=job_id, ids=ids):
            name = job.steps[step].name
            needing = dependants(job, name, index)
            behind = dependants(job, name, index, through_plans=True)
            changed |= self._put_back(job_id, [(name, index)], State.BLOCKED, _STOPPED)
            changed |= self._put_back(job_id, needing, State.BLOCKED, _NOT_BLOCKED)
            changed |= self._put_back(job_id, behind, State.BLOCKED, _STOPPED)
        self._restart(job_id, changed)
        return len(changed)

    def invalidate(self, task_ids: list[int], reason: str) -> dict[int, set[int]]:
        """The bytes of these are lost. Every task that changed, by job."""
        rows = self._db.rows("done_among", ids=task_ids)
        changed: dict[int, set[int]] = {}
        for _, job_id, step, index in rows:
            job = self._specs.job(job_id)
            needing = dependants(job, job.steps[step].name, index)
            changed.setdefault(job_id, set()).update(
                self._put_back(job_id, needing, State.BLOCKED, _UNFINISHED_OR_DONE, *_INPUT_LOST)
            )
        # Last, because one of them may depend on another: it ends up blocked.
        for id, job_id, step, index in rows:
            if id not in changed[job_id]:
                place = [(self._specs.job(job_id).steps[step].name, index)]
                lost = reason, Reason.CORRUPT
                changed[job_id] |= self._put_back(job_id, place, State.CORRUPT, [State.DONE], *lost)
        for job_id, ids in changed.items():
            self._restart(job_id, ids)
        return changed

    def _put_back(
        self,
        job_id: int,
        where: Iterable[tuple[str, int | None]],
        state: State,
        states: Collection[State],
        message: str | None = None,
        code: str | None = None,
    ) -> set[int]:
        """Tasks in one of these states must run again, or wait again."""
        changed: set[int] = set()
        for no, (first, last) in self._numbered(job_id, where):
            values = {"job": job_id, "step": no, "first": first, "last": last}
            values |= {"state": state, "states": list(states), "message": message, "code": code}
            changed.update(id for (id,) in self._db.rows("put_back", **values))
        return changed

    def _restart(self, job_id: int, changed: Collection[int]) -> None:
        """Tasks were put back: which may start, which never will, has the job ended?"""
        if changed:
            self._db.rows("job_restarts", job=job_id)
            steps = range(len(self._specs.job(job_id).steps))
            self._cancel_hopeless(job_id, [(no, _EVERY) for no in steps])
            self.sweep(job_id)

    def _replanned(self, job_id: int, changed: Iterable[int]) -> None:
        """Chunks went: what was made of all of them, or is being made, starts again.

        And so does whatever hangs on it.
        """
        job = self._specs.job(job_id)
        made = {job.steps[no].name for no in self._made_of_all(job_id, changed)}
        behind = {name for one in made for name, _ in dependants(job, one, None)}
        again = [no for no, spec in enumerate(job.steps) if spec.name in made | behind]
        places = [(job.steps[no].name, None) for no in again]
        self._put_back(job_id, places, State.BLOCKED, _NOT_BLOCKED)
        if again:
            self._cancel_hopeless(job_id, [(no, _EVERY) for no in again])

    def _unblock(self, places: Sequence[Place]) -> int:
        """Let tasks start that wait for nothing."""
        return len(self._db.rows("unblock", places=places)) if places else 0

    def _cancel_hopeless(self, job_id: int, where: Iterable[tuple[int, Span]]) -> None:
        """Cancel tasks whose inputs stopped; `where` is in the order of the graph."""
        ((stopped,),) = self._db.rows("any_stopped", job=job_id)
        if stopped:
            for no, (first, last) in where:
                self._db.rows("cancel_hopeless", job=job_id, step=no, first=first, last=last)

    def _mapped(self, job_id: int, plan: int) -> list[int]:
        steps = self._specs.job(job_id).steps
        return [no for no, spec in enumerate(steps) if spec.plan == steps[plan].name]

    def _made_of_all(self, job_id: int, steps: Iterable[int]) -> list[int]:
        job = self._specs.job(job_id)
        numbers = self._specs.numbers(job_id)
        return [numbers[name] for name in made_of_all(job, [job.steps[no].name for no in steps])]

    def _numbered(
        self, job_id: int, places: Iterable[tuple[str, int | None]]
    ) -> list[tuple[int, Span]]:
        numbers = self._specs.numbers(job_id)
        return [(numbers[name], _span(index)) for name, index in places]
