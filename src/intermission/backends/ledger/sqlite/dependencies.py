"""What waits for what: the rules by which tasks of a SQLite ledger may start, stop or return.

Everything here runs inside a transaction of the caller's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

from intermission.backends.ledger.sqlite.connection import transaction
from intermission.backends.ledger.sqlite.queries import SQL, repeated
from intermission.backends.ledger.sqlite.reads import Reads
from intermission.engine.graph import dependants, made_of_all
from intermission.model import EdgeKind, Task, TaskState

as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
NOT_BLOCKED = as_json([state for state in TaskState if state is not TaskState.BLOCKED])
_ROWS_AT_ONCE = 64, 8, 1
"""So many rows a statement takes: few statements to prepare, and each of them used often."""
_INDEX_MAX = 2**63 - 1

Row = tuple[Any, ...]
"""A task that is about to change: its id, then what its event will say (fence, job, step, state
before, worker, message), then its index, its key and more."""
_ID, _SAID = itemgetter(0), itemgetter(1, 2, 3, 4, 5, 6)
Span = dict[str, int]
"""The chunks or tasks concerned: `first` to `last`, both included."""


def span(index: int | None) -> Span:
    """One chunk, or every chunk."""
    return {"first": 0, "last": _INDEX_MAX} if index is None else {"first": index, "last": index}


def spans_of(numbers: Iterable[int]) -> list[Span]:
    """Numbers as spans; those of one batch mostly follow each other."""
    rest = sorted(set(numbers))
    if rest and rest[-1] - rest[0] == len(rest) - 1:
        return [{"first": rest[0], "last": rest[-1]}]
    found: list[Span] = []
    for number in rest:
        if found and number == found[-1]["last"] + 1:
            found[-1]["last"] = number
        else:
            found.append(span(number))
    return found


class Dependencies(Reads):
    """Adding tasks, and re-checking the ones that wait, after anything changed."""

    @contextmanager
    def _transaction(self) -> Generator[None, None, None]:
        with transaction(self._db, self.path):
            self._mark_counted()
            yield
            self._db.execute(SQL["count_changes"], {"after": self._counted})

    def _mark_counted(self) -> None:
        """The counts are right as of now; what happens later is added when the change ends."""
        (self._counted,) = self._db.execute(SQL["last_event"]).fetchone()

    def _now(self) -> dict[str, Any]:
        return {"now_ms": self._clock.now_ms(), "now_s": self._clock.monotonic_s()}

    def _each(self, name: str, rows: Iterable[tuple[Any, ...]], *values: Any) -> None:
        """Run a statement over all of these rows; `values` are those it takes besides."""
        rest = iter(rows)
        for count in _ROWS_AT_ONCE:
            while len(some := list(islice(rest, count))) == count:
                flat = chain.from_iterable(some)
                self._db.execute(repeated(name, count), (*flat, *values))
            rest = iter(some)

    def _tell(self, now: str, rows: Iterable[Row], now_ms: int, by: str | None = None) -> None:
        """Append the events of tasks that change, given as they are before; `by` a worker."""
        alike: dict[Row, list[int]] = defaultdict(list)
        for said, some in groupby(rows, _SAID):  # mostly one run
            alike[said] += map(_ID, some)
        for (fence, job_id, step, was, worker, message), ids in alike.items():
            values = {"n": len(ids), "tasks": as_json(ids), "now": now, "now_ms": now_ms}
            values |= {"job": job_id, "step": step, "was": was, "fence": fence}
            values |= {"worker": by or worker, "message": message}
            self._db.execute(SQL["insert_events"], values)

    def _add(self, job_id: int, tasks: Iterable[Task]) -> set[int]:
        """Insert tasks in their order, and let those start that wait for nothing.

        The steps of which any is new, or took the place of another.
        """
        places: dict[str, tuple[int, str]] = {}
        where: dict[int, Span] = {}
        page = list(tasks)
        for name, step in self._numbers(job_id).items():
            indexes = [task.index for task in page if task.step == name]
            if indexes:
                places[name] = step, self._first_state(job_id, step)
                where[step] = {"first": min(indexes), "last": max(indexes)}
        before = {step: self._page_now(job_id, step, where[step]) for step in where}
        rows = (
            (places[task.step][0], task.index, task.key, task.chunk, places[task.step][1])
            for task in page
        )
        self._each("insert_tasks", rows, job_id, self._clock.now_ms())
        changed: set[int] = set()
        for step, state in places.values():
            after = self._page_now(job_id, step, where[step])
            if after != before[step]:
                changed.add(step)
                n = after[0] - before[step][0]
                self._db.execute(SQL["add_count"], (job_id, step, state, n))
        self._cancel_hopeless(job_id, [(name, where[step]) for name, (step, _) in places.items()])
        for step, concerned in where.items():
            self._unblock(job_id, step, concerned)
        return changed

    def _page_now(self, job_id: int, step: int, concerned: Span) -> tuple[int, int]:
        values = {"job": job_id, "step": step} | concerned
        return self._db.execute(SQL["page_now"], values).fetchone()

    def _first_state(self, job_id: int, step: int) -> str:
        """`pending` for a step whose tasks surely can start; the others are looked at later."""
        edges = self._job(job_id).steps[step].edges
        if any(edge.kind is not EdgeKind.ONE for edge in edges):
            return "blocked"
        values = {"job": job_id, "step": step}
        (ready,) = self._db.execute(SQL["satisfied"], values).fetchone()
        return "pending" if ready else "blocked"

    def _unblock(self, job_id: int, step: int, span: Span) -> int:
        values = {"job": job_id, "step": step} | span | self._now()
        started = len(self._db.execute(SQL["unblock"], values).fetchall())
        if started:
            self._open_steps(job_id)
        return started

    def _open_steps(self, job_id: int) -> None:
        """Tasks of a job became claimable: claims are to find them."""
        self._db.execute(SQL["open_steps"], {"job": job_id} | self._now())

    def _unblock_after(self, ended: Sequence[Row]) -> None:
        """Re-check what waited for tasks that ended.

        A fan-in is looked at once, however many of its inputs ended.
        """
        waiting: dict[tuple[int, int], list[Span]] = {}
        for job_id, step in {row[2:4] for row in ended}:
            name = self._job(job_id).steps[step].name
            for no, spec in enumerate(self._job(job_id).steps):
                for edge in spec.edges:
                    if edge.upstream == name:
                        same = edge.kind is EdgeKind.SAME
                        here = (row[7] for row in ended if row[2:4] == (job_id, step))
                        spans = spans_of(here) if same else [span(None)]
                        waiting.setdefault((job_id, no), []).extend(spans)
        for (job_id, step), spans in waiting.items():
            for one in spans:
                self._unblock(job_id, step, one)

    def _sweep(self, job_id: int) -> int:
        """Look at every blocked task of a job, in case it was missed. How many may start."""
        steps = self._db.execute(SQL["blocked_steps"], (job_id,)).fetchall()
        started = sum(self._unblock(job_id, step, span(None)) for (step,) in steps)
        self._open_steps(job_id)
        self._settle(job_id)
        return started

    def _after_change(self, job_id: int) -> None:
        """Tasks came or were put back: which may start, which never will, has the job ended?"""
        everywhere = [(spec.name, span(None)) for spec in self._job(job_id).steps]
        self._cancel_hopeless(job_id, everywhere)
        self._sweep(job_id)

    def _cancel_hopeless(self, job_id: int, where: Iterable[tuple[str, Span]]) -> None:
        """Cancel tasks whose inputs stopped; `where` is in the order of the graph."""
        (stopped,) = self._db.execute(SQL["any_stopped"], (job_id,)).fetchone()
        if stopped:
            numbers = self._numbers(job_id)
            for name, concerned in where:
                values = {"job": job_id, "step": numbers[name]} | concerned | self._now()
                self._db.execute(SQL["cancel_hopeless"], values)

    def _settle(self, job_id: int) -> None:
        self._db.execute(SQL["settle"], {"job": job_id, "now_ms": self._clock.now_ms()})

    def _after_failure(self, job_id: int, step: int, index: int) -> None:
        """Cancel what can no longer run; then see what can."""
        job = self._job(job_id)
        numbers = self._numbers(job_id)
        reached = dependants(job, job.steps[step].name, index, through_plans=True)
        self._cancel_hopeless(job_id, [(name, span(at)) for name, at in reached])
        for dependant, at in reached:
            self._unblock(job_id, numbers[dependant], span(at))
        self._settle(job_id)

    def _put_back(
        self,
        job_id: int,
        step: str,
        index: int | None,
        state: str,
        states: str,
        message: str | None = None,
        code: str | None = None,
    ) -> set[int]:
        values = {
            "job": job_id,
            "step": self._numbers(job_id)[step],
            "state": state,
            "states": states,
            "message": message,
            "code": code,
        }
        values |= span(index) | self._now()
        rows = self._db.execute(SQL["put_back"], values).fetchall()
        return {id for (id,) in rows}

    def _restart(self, job_id: int, changed: bool) -> None:
        if changed:
            self._db.execute(SQL["job_restarts"], {"job": job_id} | self._now())
            self._after_change(job_id)

    def _replanned(self, job_id: int, changed: Iterable[int]) -> None:
        """Chunks came or went: what was made of all of them, or is being made, starts again."""
        names = self._made_of_all(job_id, changed)
        for name in names:
            self._put_back(job_id, name, None, "blocked", NOT_BLOCKED)
        self._cancel_hopeless(job_id, [(name, span(None)) for name in names])

    def _made_of_all(self, job_id: int, steps: Iterable[int]) -> list[str]:
        job = self._job(job_id)
        return made_of_all(job, [job.steps[no].name for no in steps])
